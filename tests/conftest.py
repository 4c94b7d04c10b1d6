import os
import signal
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, settings

import unalike as ua
from unalike.engines import costs

# The tests' models are tiny, and xdist already keeps the cores busy.
torch.set_num_threads(1)
# Generated examples are the same in every run, and none fails because the machine is busy.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
# What a step costs is therefore never written into the user's cache (tests/engines/test_choose.py has one of its own).
costs._busy = lambda: True
# What is written through to a disk matters after a power cut alone, and no test survives one. (A descriptor that is not
# open is an error still; tests/run/test_written_through.py and others look at who calls this.)
os.fsync = os.fstat
# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that; some tests press it.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MANY = 70  # methods that the house is built for


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Mark the tests that every method brings with it."""
    report = yield
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    classes = tuple(ua.METHODS.values())
    if any((isinstance(v, str) and v in ua.METHODS) or isinstance(v, classes) for v in given):
        report.user_properties.append(("of a method", True))
    return report


def pytest_terminal_summary(terminalreporter, config):
    """Count what the methods' tests take, and what they would take with many methods."""
    reports = [r for some in terminalreporter.stats.values() for r in some if isinstance(r, pytest.TestReport)]
    total = sum(r.duration for r in reports)
    methods = sum(r.duration for r in reports if ("of a method", True) in r.user_properties)
    if not methods or len(reports) < 1000:  # a part of the tests says nothing
        return
    wall = time.time() - config.stash[BEGAN]
    more = wall * (total + methods * (MANY / len(ua.METHODS) - 1)) / total
    terminalreporter.write_line(
        f"{len(ua.METHODS)} methods take {methods:.0f} s of {total:.0f} s of tests and {wall / 60:.1f} minutes; "
        f"{MANY} would take {more / 60:.1f} minutes"
    )


BEGAN = pytest.StashKey[float]()


def pytest_configure(config):
    config.stash[BEGAN] = time.time()
