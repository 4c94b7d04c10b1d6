"""One client: its job, the plan and loop of its training, its evaluation, its state, and its answers to requests.

A real client runs the code here; engines run it for many clients at once.
"""

from unalike.client.job import Job, data_sizes, state_shapes
from unalike.client.node import Node
from unalike.client.one_client import OneClient, finish
from unalike.client.plan import Plan, begin_slots, judged, leave, start_buffers
from unalike.client.rehearsal import Rehearsal
from unalike.client.state_in_memory import ClientStore, Shapes
from unalike.client.state_on_disk import FileStates, StateFolder

__all__ = [
    "ClientStore", "FileStates", "Job", "Node", "OneClient", "Plan", "Rehearsal", "Shapes", "StateFolder",
    "begin_slots", "data_sizes", "finish", "judged", "leave", "start_buffers", "state_shapes",
]  # fmt: skip
