"""The path of a reply from a client to the server's sums.

`stages/` are the steps on it (clip, noise, quantise, sparsify), `stage.py` defines a step, `channel.py` fits several of
them to a method and a model, `passage.py` is one exchange of a simulation. `sums.py` weighs and sums, and gives access
to single values of fields that declare it.
"""

from unalike.channel.by_architecture import SumsByArchitecture
from unalike.channel.channel import Channel, acting, as_table, as_text, parse, registered, texts
from unalike.channel.passage import Passage
from unalike.channel.stage import Flight, Form, Sees, Stage, Total, Way
from unalike.channel.stages import *  # noqa: F403
from unalike.channel.stages import STAGES
from unalike.channel.sums import Sums
from unalike.channel.who_sees import Sight, who_sees

__all__ = [
    "STAGES",
    "Channel",
    "Flight",
    "Form",
    "Passage",
    "Sees",
    "Sight",
    "Stage",
    "Sums",
    "SumsByArchitecture",
    "Total",
    "Way",
    "acting",
    "as_table",
    "as_text",
    "parse",
    "registered",
    "texts",
    "who_sees",
    *(k.__name__ for k in STAGES.values()),
]
