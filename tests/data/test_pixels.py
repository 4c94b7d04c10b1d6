"""Pictures that are held as bytes: the same numbers, a quarter of the memory."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from torch.func import vmap
from torch.nn.functional import conv2d

import unalike as ua
from unalike.data.columns import FORMAT
from unalike.data.pixels import Pixels, held_by, kept, made_of, numbers, pixels, read, rows_of
from unalike.data.sources.common import images
from unalike.errors import UnalikeError

MEAN, DEVIATION = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
ROWS = torch.tensor([[3, 1], [-1, 7]])


@pytest.fixture(scope="module")
def held():
    return pixels(
        torch.arange(20 * 3 * 16).mul(37).remainder(256).to(torch.uint8).reshape(20, 3, 4, 4), MEAN, DEVIATION
    )


@pytest.fixture(scope="module")
def plain(held):
    """The numbers as they were made when pictures were converted as a whole."""
    mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in (MEAN, DEVIATION))
    return held.held.bytes.to(torch.float32).div_(255).sub_(mean).div_(deviation)


SAME = {
    "rows": lambda x: x[ROWS],
    "negative rows": lambda x: x[ROWS[1]],
    "a list": lambda x: x[[4, 2]],
    "a mask": lambda x: x[torch.arange(20) % 3 == 0],
    "a picture": lambda x: x[-3],
    "a channel": lambda x: x[:, 1],
    "a channel of a picture": lambda x: x[2, 1],
    "some of some": lambda x: x[1:5, 1:],
    "a stride": lambda x: x[::7],
    "some channels": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "some rows": lambda x: x.index_select(0, ROWS[0] + 1),
    "a new axis": lambda x: x[None],
    "clone": lambda x: x.clone(),
    "flat": lambda x: x.flatten(1),
    "mean": lambda x: x.mean((0, 2, 3)),
    "arithmetic": lambda x: 2 * x - x.double() / 3,
    "compared": lambda x: (x > 0).float(),
    "stacked": lambda x: torch.stack([x, x]),
    "expanded": lambda x: x[:1].expand(4, 3, 4, 4),
    "new": lambda x: x.new_full((2, 2), 3.0),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "in a stack of clients": lambda x: vmap(lambda one: one * 2)(x),
    "numpy": lambda x: torch.from_numpy(np.asarray(x) + 0),
    "another library": lambda x: torch.from_dlpack(x) + 0,
    "a convolution": lambda x: conv2d(x, torch.ones(2, 3, 2, 2)),
    "iterated": lambda x: torch.stack(list(x)),
    "copied into": lambda x: torch.zeros(20, 3, 4, 4).copy_(x),
}
STAYS = {
    "float64": lambda x: x.to(torch.float64),
    "joined": lambda x: torch.cat([x, x]),
    "split": lambda x: x.split(8)[1],
    "detached": lambda x: x.detach(),
    "kept": lambda x: kept(x, torch.tensor([5, 5, 2])),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "copied": lambda x: copy.deepcopy(x),
    "taken apart": lambda x: made_of(held_by(x)),
    "shared": lambda x: copy.copy(x).share_memory_(),
}


@pytest.mark.parametrize("name", SAME)
def test_all_that_is_computed_is_the_same(held, plain, name):
    got, want = SAME[name](held), SAME[name](plain)
    assert type(got) is torch.Tensor and got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("name", STAYS)
def test_what_stays_bytes(held, plain, name):
    got, want = STAYS[name](held), STAYS[name](plain)
    assert isinstance(got, Pixels) and got.nbytes * want.element_size() == want.nbytes
    assert (got.dtype, got.shape) == (want.dtype, want.shape) and torch.equal(numbers(got), want)


def test_samples_of_other_kinds_are_joined_as_numbers(held, plain):
    other = pixels(held.held.bytes, DEVIATION, DEVIATION)
    assert torch.equal(torch.cat([held, plain]), torch.cat([plain, plain]))
    assert torch.equal(torch.cat([held, other]), torch.cat([plain, numbers(other)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_compiled_step_reads(held, plain, dtype):
    x, rows = held.to(dtype), ROWS % 20
    got = read(held_by(x), rows, dtype)
    assert torch.equal(got, plain[rows].to(dtype)) and torch.equal(got, rows_of(x, rows))
    assert got.dtype == rows_of(x, rows).dtype == dtype


@pytest.mark.parametrize("where", [20, -21])
def test_a_row_that_is_not_there(held, where):
    with pytest.raises(IndexError):
        held[torch.tensor([where])]
    with pytest.raises(IndexError):
        held[where]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_masks(held, plain):
    mask = (torch.arange(20) % 3 == 0).to(torch.uint8)
    assert torch.equal(held[mask], plain[mask])
    for size in (19, 21):
        with pytest.raises(IndexError, match="does not match"):
            held[torch.zeros(size, dtype=torch.bool)]


@pytest.mark.parametrize(
    "change", [lambda x: x.add_(1), lambda x: x.copy_(x.clone()), lambda x: x.__setitem__(0, 1.0), lambda x: x.zero_()]
)
def test_it_cannot_be_written_to(held, change):
    before = held.held.bytes.clone()
    with pytest.raises(UnalikeError, match="cannot be changed in place"):
        change(held)
    assert torch.equal(held.held.bytes, before)


def test_only_bytes_can_be_held():
    with pytest.raises(UnalikeError, match=r"not torch\.float32"):
        pixels(torch.zeros(2, 3))


@pytest.mark.parametrize("normalise", [False, True])
def test_sources_hold_pictures_as_bytes(normalise):
    bytes = np.arange(2 * 256, dtype=np.uint8).reshape(2, 1, 16, 16)
    got, want = images(bytes, [0.1307], [0.3081], normalise), torch.from_numpy(bytes).float() / 255
    want = (want - torch.tensor(0.1307)) / torch.tensor(0.3081) if normalise else want
    assert got.nbytes == bytes.nbytes and torch.equal(numbers(got), want)


def split(x):
    data = ua.Dataset(x, torch.arange(20) % 4, test=(x, torch.arange(20) % 4))
    return data.split("iid", clients=3, test=0.2, validation=0.2, public=2, splits={"support": 0.5})


def parts(fed):
    return [*(x for _, x, _, _ in fed.sets()), fed.public[0]]


def test_a_federation_takes_a_quarter_of_the_memory(held, plain):
    got, want = split(held), split(plain)
    assert all(isinstance(x, Pixels) for x in parts(got)) and len(parts(got)) == 6
    assert 4 * sum(x.nbytes for x in parts(got)) == sum(x.nbytes for x in parts(want))
    assert all(torch.equal(numbers(a), b) for a, b in zip(parts(got), parts(want), strict=True))
    assert got.fingerprint() == want.fingerprint() and repr(got) == repr(want)
    got.check()


def test_folders_of_columns_hold_bytes_too(held, plain, tmp_path):
    plain_folder = tmp_path / "plain"
    got, want = split(held).mapped(tmp_path / "held"), split(plain).mapped(plain_folder)
    assert all(isinstance(x, Pixels) for x in parts(got)) and got.fingerprint() == want.fingerprint()
    assert np.load(tmp_path / "held" / "training_x.npy").dtype == np.uint8
    forms = [
        json.loads((folder / "columns.json").read_text())["format"] for folder in (tmp_path / "held", plain_folder)
    ]
    assert forms[0] != forms[1] == FORMAT  # an older version must refuse it
    double = split(held).to("cpu", torch.float64).mapped(tmp_path / "double")
    assert double.fingerprint() == want.to("cpu", torch.float64).fingerprint()


@pytest.mark.parametrize("change", ["rotate:2", "noise:0.5", "shift:1", "views:2", "permute:2", "drift:2:noise:1"])
def test_changes_of_samples_are_those_of_numbers(held, plain, change):
    got, want = split(held).skewed(change), split(plain).skewed(change)
    got, want = (fed if fed.drift is None else fed.at(2) for fed in (got, want))
    assert got.fingerprint() == want.fingerprint()


def test_measures_and_pictures_are_those_of_numbers(held, plain):
    got, want = split(held), split(plain)
    assert ua.skew.measure(got) == ua.skew.measure(want)
    assert torch.equal(ua.data.extras.noise_like(got, 3), ua.data.extras.noise_like(want, 3))
