"""The contract between a method and the engines.

A method has two halves. The client half is written for ONE client: a function of `me` (numbers about the client and a
way to ask for work on its data), `s` (its own state) and `m` (the message from the server). It either asks the engine
for work (`return me.train(m.w).then(self.done)`) or ends with `(new state, reply)`. The pieces between requests are
pure functions of tensors: the engine calls them with one client's vectors, or under `vmap` with a whole cohort's.
The server half, `round(server, cohort)`, calls client functions on a cohort and reads what their replies declare.
"""

from unalike.contract.architectures import Architectures
from unalike.contract.call import EVALUATION, Call, Evaluate, LazyOutcome, Outcome
from unalike.contract.client import Answer, Batch, Me
from unalike.contract.fields import BUFFERS, LOSS, OPTIMIZER, Field, Fields, PerClient
from unalike.contract.method import Method, check_serverless, client_functions, fingerprint, function_name, settings
from unalike.contract.peers import Parcels, Sealed
from unalike.contract.privacy import privacy
from unalike.contract.requests import Average, Gradient, Outputs, Request, Train, plain_args, tensor_args
from unalike.contract.server import Arrived, Best, Cohort, Message, Replies, Server
from unalike.contract.server_draws import ServerDraws
from unalike.contract.staleness import STALENESS, parse_staleness, staleness_weight
from unalike.contract.vectors import Layouts, Vectors, by_network
from unalike.nn.layout import Layout
from unalike.settings.knobs import Knob, knob

__all__ = [
    "BUFFERS", "EVALUATION", "LOSS", "OPTIMIZER", "STALENESS", "Answer", "Architectures", "Arrived", "Average", "Batch",
    "Best", "Call", "Cohort", "Evaluate", "Field", "Fields", "Gradient", "Knob", "Layout", "Layouts", "LazyOutcome",
    "Me", "Message", "Method", "Outcome", "Outputs", "Parcels", "PerClient", "Replies", "Request", "Sealed", "Server",
    "ServerDraws", "Train", "Vectors", "by_network", "check_serverless", "client_functions", "fingerprint",
    "function_name", "knob", "parse_staleness", "plain_args", "privacy", "settings", "staleness_weight", "tensor_args",
]  # fmt: skip
