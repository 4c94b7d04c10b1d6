import signal
import threading

import torch

from unalike.engines import costs

# The tests' models are tiny, and xdist already keeps the cores busy.
torch.set_num_threads(1)
# What a step costs is therefore never written into the user's cache (tests/engines/test_choose.py has one of its own).
costs._busy = lambda: True
# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that; some tests press it.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
