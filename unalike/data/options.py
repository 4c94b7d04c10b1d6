"""Options of data that several functions take, each described once."""

from typing import Annotated

from unalike.data.preparation import SCALES
from unalike.settings.knobs import Knob

PARTITION = Knob("how samples are dealt to clients: iid, dirichlet:0.1, natural (unalike list partitions)", written=str)
CLIENTS = Knob("how many clients; of data that come with their clients, the largest", least=1)
TEST = Knob('share of every client\'s samples held out for its own test; "same": the test set, dealt alike', least=0)

PUBLIC = Knob(
    "samples that everybody has: a share or a number set aside, an .npz or .safetensors file, another set without its "
    "labels (cifar100:5000), noise:1000, or what file.py:make:1000 gives",
    least=0,
    written=float | str,
)
LABELS = Knob("the public set keeps its labels")
SHIPPED = Knob("the server sends the public set to every client once: its bytes count as the set-up's")
SPLITS = Knob("further splits of a client's training samples, by share", written=dict[str, float])

Clients = Annotated[int, CLIENTS]
Seed = Annotated[int, Knob("of the split, apart from the run's", least=0)]
Test = Annotated[float, TEST]
Validation = Annotated[float, Knob("share held out to choose a round by", least=0)]
Normalise = Annotated[bool, Knob("pictures minus the mean, over the deviation; else in 0..1")]
Scale = Annotated[bool, Knob("features to -1..1 by their ranges in the training rows")]
TestShare = Annotated[float, Knob("of every speaker's text, or of all tweets, for the test set")]
Scaling = Annotated[
    str,
    Knob(
        "units: standard (by sums over all clients), client (each by its own), none, or raw (no cell is filled: trees)",
        choices=SCALES,
        noun="scale",
    ),
]
Folder = Annotated[str | None, Knob("where that set's files are, if not in the cache")]
Length = Annotated[int, Knob("tokens in a sample")]
Alpha = Annotated[float, Knob("how much the clients' models differ")]
Beta = Annotated[float, Knob("how much the clients' inputs differ")]
