"""A run as a TOML file, and the file as a run. Tables [data], [model], [method], [local], [clock], [run].

    [data]
    name = "digits"            # or folder = "path/of/client/files", or table = "file.csv"
    partition = "dirichlet:0.1"
    clients = 50

    [model]
    name = "mlp"               # or file = "path/to/file.py:build"; sizes are found from the data
    loss = "cross-entropy"     # or "path/to/file.py:loss"

    [method]
    name = "scaffold"

    [local]
    epochs = 5
    batch_size = 10            # "full" is the full batch

    [run]
    rounds = 20
    clients_per_round = 0.2    # or 10, "bernoulli:0.15", "by-size:10", [[0, 1], [2, 3]]

What a setting may be comes from the annotations of the functions it is given to, so a file, the command line and
Python accept the same. Paths are read from where the program is started, as in Python. The config.toml of a run folder
is such a file, with absolute paths and a table [facts] of what was found.

Where clients have different networks, [models.small] and [models.large] take the place of the name in [model], which
keeps loss and metrics, and [run] architecture = "small:10, large:40" (or a list of names) says which client has which.
Where their samples differ too, [data.pictures] and [data.signals] take the place of [data], each with all that [data]
may have; the networks are [models.pictures] and [models.signals], and architecture is left out: clients are numbered
table after table.

What replies go through on their way to the server: [run] channel = "clip:1.0,topk:0.01", or a table for each stage,

    [[channel]]
    kind = "clip"              # or "path/to/file.py:Class"
    norm = 1.0

How long clients take, and how long the server waits:

    [clock]
    speeds = "lognormal:1.0"   # or a number, a list, a file of devices
    cutoff = 60.0              # seconds
"""

from unalike.config.build import (
    as_stored,
    joined,
    make_data,
    make_local,
    make_loss,
    make_method,
    make_model,
    make_sampling,
    network_names,
)
from unalike.config.channels import channel_tables, channel_text, find_stage, make_channel, stage_settings
from unalike.config.checks import FEDSGD, absolute, check, is_fedsgd, load_toml, population, read, read_tables
from unalike.config.json_schema import schema
from unalike.config.runner import run
from unalike.config.tables import (
    ENGINE,
    FACTS,
    IN_COMMON,
    MODELS_TABLE,
    NAMES,
    SETTINGS,
    TABLES,
    data_parts,
    data_settings,
    described,
    every,
    method_settings,
    model_settings,
    network_settings,
    uses,
)  # fmt: skip
from unalike.config.user_files import code_in, from_file, is_file, own_method

__all__ = [
    "ENGINE",
    "FACTS",
    "FEDSGD",
    "IN_COMMON",
    "MODELS_TABLE",
    "NAMES",
    "SETTINGS",
    "TABLES",
    "absolute",
    "as_stored",
    "channel_tables", "channel_text",
    "check",
    "code_in",
    "data_parts",
    "data_settings",
    "described",
    "every",
    "find_stage",
    "from_file",
    "is_fedsgd",
    "is_file",
    "joined",
    "load_toml",
    "make_channel",
    "make_data",
    "make_local",
    "make_loss",
    "make_method",
    "make_model",
    "make_sampling",
    "method_settings",
    "model_settings",
    "network_names",
    "network_settings",
    "own_method",
    "population",
    "read",
    "read_tables",
    "run",
    "schema", "stage_settings",
    "uses",
]  # fmt: skip
