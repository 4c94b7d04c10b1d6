import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import GOLDEN
from safetensors.numpy import save_file

from unalike.data import Columns, Dataset, Federation, RemoteFederation, load, load_federation, partition, synthetic
from unalike.data import columns as columns_module
from unalike.data import public as public_module
from unalike.data.remote import alone
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def clients(sizes, features=3, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, features)).astype(np.float32), rng.integers(0, classes, n)) for n in sizes]


def small(**options):
    return Federation.from_arrays(clients([5, 1, 8, 2]), classes=4, **options)


def equal(a, b):
    assert len(a) == len(b) and a.facts == b.facts
    for (what, x, y, columns), (what_b, x_b, y_b, columns_b) in zip(a.sets(), b.sets(), strict=True):
        assert what == what_b and torch.equal(x, x_b) and torch.equal(y, y_b)
        if columns is not None:
            assert np.array_equal(columns.offsets, columns_b.offsets)


# ---- the authors' generators


@pytest.mark.parametrize(
    "name, alpha, beta, iid",
    [
        ("synthetic_0_0", 0, 0, False),
        ("synthetic_0.5_0.5", 0.5, 0.5, False),
        ("synthetic_1_1", 1, 1, False),
        ("synthetic_iid", 0, 0, True),
    ],
)
def test_fedprox_generator_is_the_official_one(name, alpha, beta, iid):
    golden = json.loads((GOLDEN / "generator_fedprox_synthetic.json").read_text())["results"][name]
    arrays = synthetic.synthetic_fedprox(alpha, beta, iid=iid, seed=0)
    assert [len(x) for x, _ in arrays] == golden["n"]
    np.testing.assert_allclose(arrays[0][0][0], golden["x_user0_row0"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(arrays[-1][0][-1], golden["x_user29_last"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(sum(x.sum() for x, _ in arrays), golden["sum_x"], rtol=0, atol=1e-9)
    assert [np.bincount(y, minlength=10).tolist() for _, y in arrays] == golden["y_counts"]


@pytest.mark.parametrize("alpha, beta", [(0, 0), (1, 0), (0, 1)])
def test_feddc_generator_is_the_official_one(alpha, beta):
    golden = json.loads((GOLDEN / "generator_feddc_synthetic.json").read_text())["results"]
    golden = golden[f"syn({alpha},{beta})"]
    fed = synthetic.feddc(alpha, beta, seed=0)
    x, y = fed.train.x.numpy(), fed.train.y
    assert list(fed.sizes) == [200] * 20 and x.dtype == np.float64 and y.dtype == torch.int64
    np.testing.assert_allclose(x[0], golden["x_client0_row0"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(x[-1], golden["x_client19_last"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(x.sum(), golden["sum_x"], rtol=0, atol=1e-9)
    assert fed.label_counts().tolist() == golden["y_counts"]
    assert fed.global_test[0] is fed.train.x  # as the authors' program: tested on the training set


def test_synthetic_federations_hold_out_samples():
    fed = synthetic.fedprox(1, 1, clients=5, seed=3)
    assert fed.test is not None and (fed.test.sizes > 0).all()
    np.testing.assert_allclose(fed.test.sizes / (fed.test.sizes + fed.sizes), 0.2, atol=0.01)
    fed = synthetic.feddc(0, 1, test=0.25)
    assert fed.test.sizes.tolist() == [50] * 20 and fed.global_test[0] is fed.test.x
    assert synthetic.feddc(global_test=False).global_test is None
    fed.check()


@pytest.mark.parametrize(
    "options, line",
    [
        ({"alpha": -1}, "alpha=-1 must be"),
        ({"beta": float("nan")}, "beta=nan must be"),
        ({"clients": 0}, "clients=0 must be"),
        ({"seed": 1 << 32}, "seed=4294967296 must be"),
    ],
)
def test_synthetic_refuses(options, line):
    for make in (synthetic.fedprox, synthetic.feddc):
        with says(line):
            make(**options)


# ---- partitions


def every_sample_once(parts, n, clients):
    assert len(parts) == clients and min(len(part) for part in parts) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    text=st.sampled_from(
        ["iid", "iid:true", "dirichlet:0.01", "dirichlet:1", "dirichlet:1e-9", "dirichlet:0.3:3", "shards:1"]
    ),
    clients=st.integers(1, 30),
    extra=st.integers(0, 60),
    classes=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_sample_goes_to_one_client(text, clients, extra, classes, seed):
    split = partition.parse(text)
    each = getattr(split, "min_size", 1)
    n = clients * each + extra
    labels = np.random.default_rng(0).integers(0, classes, n) * 7 - 3  # any integers will do
    parts = split(labels, clients, seed)
    every_sample_once(parts, n, clients)
    assert min(len(part) for part in parts) >= each
    for one, two in zip(parts, split(labels, clients, seed), strict=True):
        assert np.array_equal(one, two)


def test_iid_is_even():
    labels = np.repeat(np.arange(4), [40, 20, 30, 13])
    sizes = [len(part) for part in partition.IID()(labels, 10, 0)]
    assert max(sizes) - min(sizes) <= 1
    parts = partition.IID(balanced=True)(labels, 10, 0)
    counts = np.array([np.bincount(labels[part], minlength=4) for part in parts])
    assert (counts.max(0) - counts.min(0)).tolist() == [0, 0, 0, 1]
    assert np.ptp(counts.sum(1)) <= 1


def test_dirichlet_alpha_is_the_skew():
    labels = np.random.default_rng(1).integers(0, 10, 5000)
    kinds = []
    for alpha in (0.05, 0.5, 100.0):
        parts = partition.Dirichlet(alpha)(labels, 20, 0)
        kinds.append(np.mean([len(np.unique(labels[part])) for part in parts]))
    assert kinds[0] < 5 < kinds[1] < kinds[2] == 10
    sizes = [len(part) for part in partition.Dirichlet(100.0)(labels, 20, 0)]
    assert min(sizes) > 150 and max(sizes) < 350


def test_dirichlet_repairs_what_no_draw_can_give():
    labels = np.arange(400) % 2
    parts = partition.Dirichlet(0.001, min_size=2)(labels, 200, 0)
    every_sample_once(parts, 400, 200)
    assert {len(part) for part in parts} == {2}


def test_shards_hold_few_labels():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    parts = partition.Shards(2)(labels, 30, 5)
    every_sample_once(parts, 600, 30)
    assert {len(part) for part in parts} == {20}
    assert max(len(np.unique(labels[part])) for part in parts) == 2
    every_sample_once(partition.Shards(3)(np.linspace(0, 1, 100), 7, 0), 100, 7)  # regression targets


def test_seeds_differ():
    labels = np.arange(100) % 10
    for split in (partition.IID(), partition.IID(True), partition.Dirichlet(0.5), partition.Shards()):
        one, two = split(labels, 5, 0), split(labels, 5, 1)
        assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_partition_text():
    assert partition.parse("dirichlet:0.1") == partition.Dirichlet(0.1)
    assert partition.parse(" Dirichlet : 0.1 : 5 ") == partition.Dirichlet(0.1, min_size=5)
    assert partition.parse("iid:true") == partition.IID(balanced=True)
    for split in (partition.IID(), partition.IID(True), partition.Dirichlet(0.3), partition.Shards(4)):
        assert partition.parse(str(split)) == split
    assert str(partition.Dirichlet(0.3)) == "dirichlet:0.3" and str(partition.Shards()) == "shards"


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("dirichlt:0.1", ["There is no partition 'dirichlt'", "Did you mean 'dirichlet'"]),
        ("zebra", ["There is no partition 'zebra'", "classes, colour"]),
        ("dirichlet", ["'dirichlet' lacks alpha", "dirichlet:alpha:min_size"]),
        ("dirichlet:much", ["alpha='much'", "must be a number"]),
        ("dirichlet:-1", ["alpha=-1.0 must be"]),
        ("dirichlet:nan", ["alpha=nan must be"]),
        ("dirichlet:1:-1", ["min_size=-1 must be"]),
        ("shards:1:2", ["has 2 arguments", "shards:per_client"]),
        ("shards:1.5", ["per_client='1.5'", "whole number"]),
        ("iid:maybe", ["balanced='maybe'", "true or false"]),
    ],
)
def test_partition_text_refuses(text, pieces):
    with says(*pieces):
        partition.parse(text)


@pytest.mark.parametrize(
    "text, n, pieces",
    [
        ("iid", 4, ["each of 5 clients 1 or more of 4 samples", "at most 4 clients"]),
        ("dirichlet:0.1:3", 14, ["each of 5 clients 3 or more of 14 samples", "at most 4 clients"]),
        ("shards:20", 9, ["each of 5 clients 20 or more of 9 samples", "fewer samples per client"]),
        ("shards:2", 9, ["each of 5 clients 2 or more of 9 samples", "at most 4 clients"]),
    ],
)
def test_impossible_partitions(text, n, pieces):
    with says(*pieces):
        partition.parse(text)(np.zeros(n, np.int64), 5, 0)


def test_partition_refuses():
    labels = np.arange(10)
    with says("clients=0 must be"):
        partition.IID()(labels, 0, 0)
    with says("clients=2.5 must be"):
        partition.IID()(labels, 2.5, 0)
    with says("seed=-1 must be"):
        partition.IID()(labels, 2, -1)
    with says("'dirichlet' needs class labels", "float64"):
        partition.Dirichlet(1.0)(np.linspace(0, 1, 10), 2, 0)
    with says("labels of shape \\[5, 2\\]"):
        partition.Shards()(labels.reshape(5, 2), 2, 0)


# ---- data sets


def test_digits():
    data = load("digits")
    assert len(data) + len(data.test[0]) == 1797 and data.classes == 10
    assert data.x.dtype == torch.float32 and data.x.shape[1:] == (64,) and float(data.x.max()) == 1.0
    share = torch.bincount(data.test[1]) / (torch.bincount(data.y) + torch.bincount(data.test[1]))
    assert ((share - 0.2).abs() < 0.01).all()
    image = load("digits", image=True)
    assert image.x.shape[1:] == (1, 8, 8) and torch.equal(image.x.flatten(1), data.x)
    # fixed: the same rows on every machine
    assert data.test[1][:12].tolist() == [1, 4, 6, 7, 8, 0, 2, 3, 6, 8, 9, 4]
    assert float(data.test[0].sum()) == 7012.5


def test_split_keeps_pairs_together():
    x = torch.arange(100.0).reshape(100, 1)
    data = Dataset(x, torch.arange(100) % 10, test=(x[:4], torch.arange(4)), name="count")
    fed = data.split("dirichlet:0.5", clients=7, seed=1, test=0.2, validation=0.1)
    fed.check()
    parts = [fed.train, fed.validation, fed.test]
    assert all(torch.equal(part.x[:, 0].long() % 10, part.y) for part in parts)
    assert sorted(torch.cat([part.x for part in parts])[:, 0].tolist()) == list(range(100))
    assert len(fed) == 7 and len(fed.global_test[0]) == 4 and fed.classes == 10
    assert "7 clients" in repr(fed) and "count" in repr(data)


def test_own_partition():
    data = Dataset(np.zeros((6, 2)), np.arange(6))
    fed = data.split(lambda labels, clients, seed: [np.array([5]), np.array([0, 1])], clients=2)
    assert fed.train.y.tolist() == [5, 0, 1]
    with says("gave 1 parts for 2 clients"):
        data.split(lambda labels, clients, seed: [np.array([0])], clients=2)
    with says("row numbers up to 6", "0..5"):
        data.split(lambda labels, clients, seed: [np.array([0]), np.array([6])], clients=2)


def test_load_refuses():
    with says("There is no data set 'digit'", "Did you mean 'digits'"):
        load("digit")
    with says("'synthetic-fedprox' comes with its clients: use load_federation"):
        load("synthetic-fedprox")
    with says("'digits' has no clients yet"):
        load_federation("digits")
    with says("'digits' has no option 'images'", "Did you mean 'image'"):
        load("digits", images=True)
    assert len(load_federation("synthetic-feddc", clients=3)) == 3


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with says("needs scikit-learn", "pip install 'unalike.app.'"):
        load("digits")


# ---- federations


def test_columns():
    arrays = clients([5, 1, 8, 2])
    fed = Federation.from_arrays(arrays)
    assert fed.sizes.tolist() == [5, 1, 8, 2] and len(fed) == 4 and fed.classes == 4
    for k, (x, y) in enumerate(arrays):
        mine = fed.train.of(k)
        assert np.array_equal(mine[0], x) and np.array_equal(mine[1], y)
        assert mine[0].untyped_storage().data_ptr() == fed.train.x.untyped_storage().data_ptr()  # a view
    with says("There is no client 4: there are 4"):
        fed.train.of(4)
    with says("There is no client -1"):
        fed.train.of(-1)
    counts = np.array([np.bincount(y, minlength=4) for _, y in arrays])
    assert np.array_equal(fed.label_counts(), counts)


def test_dtypes_are_kept():
    def fed(x, y):
        return Federation.from_arrays([(x, y)])

    assert fed(np.zeros((2, 3)), [0, 1]).train.x.dtype == torch.float64
    assert fed(torch.zeros(2, 3), np.array([0, 1], np.uint8)).train.y.dtype == torch.int64
    assert fed(np.zeros((2, 3), ">f4"), [True, False]).train.x.dtype == torch.float32
    assert fed(np.zeros((2, 3), np.uint16), [0, 1]).train.x.dtype == torch.int64  # tokens
    regression = fed(np.zeros((2, 3)), np.zeros((2, 2), np.float32))
    assert regression.classes is None and regression.train.y.dtype == torch.float32
    regression.check()
    with says("labels are floats"):
        regression.label_counts()


def test_client_tests_may_be_missing():
    arrays = clients([5, 1, 8, 2])
    fed = small(client_tests=[arrays[0], None, ([], []), arrays[3]], test=arrays[2])
    assert fed.test.sizes.tolist() == [5, 0, 0, 2] and len(fed.global_test[0]) == 8
    fed.check()
    assert small(client_validations=[None] * 4).validation.sizes.tolist() == [0] * 4


X, Y = np.zeros((3, 2)), np.array([0, 1, 2])


@pytest.mark.parametrize(
    "make, pieces",
    [
        (lambda: Federation.from_arrays([]), ["no clients"]),
        (lambda: Federation.from_arrays([X]), ["client 0 is a ndarray", "a pair"]),
        (lambda: Federation.from_arrays([(X, Y), (X, Y[:2])]), ["client 1", r"\[3, 2\]", r"\[2\]"]),
        (lambda: Federation.from_arrays([(X, Y), (X[:, :1], Y)]), ["client 1 has x", r"\[1\]", r"client 0 .*\[2\]"]),
        (lambda: Federation.from_arrays([(X, Y), (X, Y * 1.0)]), ["client 1 has y float", "integer"]),
        (lambda: Federation.from_arrays([(X, Y.reshape(3, 1))]), [r"shape \[3, 1\]", "reshape"]),
        (lambda: Federation.from_arrays([(X, np.array(["a", "b", "c"]))]), ["y of client 0", "numeric"]),
        (lambda: Federation.from_arrays([(X.astype(object), Y)]), ["x of client 0 has dtype object"]),
        (lambda: Federation.from_arrays([([[1], [1, 2], [3]], Y)]), ["x of client 0", "unequal shape"]),
        (lambda: Federation.from_arrays([(X + 1j, Y)]), ["complex128"]),
        (lambda: Federation.from_arrays([(X, Y)], names=["a", "b"]), ["2 names", "1 clients"]),
        (lambda: Federation.from_arrays([(X, Y)] * 2, names=["a", "a"]), ["1 distinct"]),
        (lambda: Federation.from_arrays([(X, Y)], classes=0), ["classes=0 must be"]),
        (lambda: Federation.from_arrays([(X, Y * 1.0)], classes=3), ["classes=3", "integers"]),
        (lambda: Federation.from_arrays([(X, Y)], client_tests=[]), ["0 client test sets for 1"]),
        (lambda: Federation.from_arrays([(X, Y)], test=(X[:, :1], Y)), ["global test set has x", "training split"]),
        (lambda: Federation.from_arrays([(X, Y)], test=X), ["global test set is a ndarray"]),
        (lambda: Federation.from_arrays([(X[:0], Y[:0])]), ["None of the 1 clients"]),
        (lambda: Columns(X, Y, [0, 2]), ["offsets run from 0 to 2 for 3 rows"]),
        (lambda: Columns(X, Y, [0, 3, 2, 3]), ["must rise"]),
        (lambda: Columns(X, Y, [0.0, 3.0]), ["offsets have shape", "float64"]),
        (lambda: Dataset(X[:0], Y[:0], name="none"), ["'none' is empty"]),
        (lambda: small().to("gpu"), ["no device 'gpu'"]),
        (lambda: small().to("cpu", torch.int64), ["dtype=torch.int64 must be"]),
    ],
)
def test_bad_input(make, pieces):
    with says(*pieces):
        make()


def test_check_names_the_client():
    small().check()
    x, y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])

    def fed(x=x, y=y, offsets=(0, 2, 4, 6), **options):
        return Federation(Columns(x, y, np.array(offsets)), **options)

    with says("2 of 5 clients have no training samples", r"client 0, client 3\)"):
        fed(offsets=(0, 0, 2, 4, 4, 6)).check()
    with says("clients have no training samples", r"client 1 \('b'\)"):
        fed(offsets=(0, 3, 3, 6), names=["a", "b", "c"]).check()
    with says("client 1, sample 0 of its training split has the label 2", "below classes=2"):
        fed(classes=2).check()
    with says("client 1", "label 2"):
        fed(classes=2).label_counts()
    with says("client 2, sample 1", "label -1"):
        fed(y=torch.tensor([0, 1, 2, 0, 1, -1])).check()
    bad = x.clone()
    bad[3, 1] = float("inf")
    with says("x of client 1, sample 1 of its training split", "NaN or infinite"):
        fed(x=bad).check()
    with says("x of the global test set, sample 3"):
        fed(global_test=(bad, y)).check()
    with says("y of client 0, sample 1", "NaN"):
        fed(y=torch.tensor([0.0, float("nan"), 1, 1, 1, 1])).check()
    for dtype in (torch.uint8, torch.bool):
        with says("x of the training split is", "convert it to float"):
            fed(x=x.to(dtype)).check()


def test_check_looks_at_every_chunk(monkeypatch):
    monkeypatch.setattr(columns_module, "CHUNK_BYTES", 8)
    fed = small()
    before = fed.fingerprint()
    fed.train.x[-1, -1] = float("nan")
    with says("client 3, sample 1"):
        fed.check()
    assert fed.fingerprint() != before


# ---- splits per client


def test_split_clients():
    arrays = clients([10, 1, 3, 40, 2])
    fed = Federation.from_arrays(arrays).split_clients(test=0.2, validation=0.25, seed=4)
    assert fed.test.sizes.tolist() == [2, 0, 1, 8, 0]
    assert fed.validation.sizes.tolist() == [3, 0, 1, 10, 1]
    assert fed.sizes.tolist() == [5, 1, 1, 22, 1]
    for k, (x, _) in enumerate(arrays):
        mine = torch.cat([part.of(k)[0] for part in (fed.train, fed.validation, fed.test)])
        assert sorted(mine[:, 0].tolist()) == sorted(x[:, 0].tolist())
    fed.check()


def test_every_client_keeps_a_sample_to_train_on():
    """Of 1 sample none goes, of 2 one, of 10 five and four."""
    whole = Federation.from_arrays([(np.zeros((n, 2)), np.arange(n) % 3) for n in (1, 2, 10)])
    fed = whole.split_clients(test=0.5, validation=0.4)
    assert fed.train.sizes.tolist() == [1, 1, 1]
    assert fed.test.sizes.tolist() == [0, 1, 5] and fed.validation.sizes.tolist() == [0, 0, 4]


def test_a_clients_split_does_not_depend_on_the_others():
    arrays = clients([10, 7, 30])
    one = Federation.from_arrays(arrays).split_clients(test=0.3, seed=1)
    two = Federation.from_arrays([*clients([4, 5], seed=9), arrays[2]]).split_clients(test=0.3, seed=1)
    assert torch.equal(one.test.of(2)[0], two.test.of(2)[0])
    other = Federation.from_arrays(arrays).split_clients(test=0.3, seed=2)
    assert not torch.equal(one.test.of(2)[0], other.test.of(2)[0])


@pytest.mark.parametrize(
    "options, pieces",
    [
        ({"test": 1.0}, [r"test=1.0 must be a fraction"]),
        ({"test": -0.1}, ["test=-0.1 must be"]),
        ({"test": 0.5, "validation": 0.5}, ["leave nothing to train on"]),
        ({"test": 0.01}, ["test=0.01 of at most 8 samples"]),
        ({"test": 0.5, "seed": 1.5}, ["seed=1.5 must be"]),
    ],
)
def test_split_clients_refuses(options, pieces):
    with says(*pieces):
        small().split_clients(**options)


def test_split_twice():
    fed = small().split_clients(test=0.3)
    with says("test=0.3 was asked for but the clients have a test split"):
        fed.split_clients(test=0.3)
    assert fed.split_clients(validation=0.3).test is fed.test
    assert fed.split_clients() is fed


# ---- named splits


FACTS = {
    "classes": 4,
    "names": list("abcd"),
    "label_names": ["cat", "dog", "owl", "fox"],
    "notes": [],
    **dict.fromkeys(("schema", "recipe", "preparation")),
    "shipped": False,
    "planted": {},
    "drift": None,
}


def named():
    """All parts: three splits, a global test set, names of the clients and of the labels."""
    fed = small(test=(clients([3])[0]), names=FACTS["names"]).replace(label_names=FACTS["label_names"])
    return fed.split_clients(test=0.3, validation=0.2)


def test_splits_have_names():
    fed = named()
    assert list(fed.splits) == ["train", "validation", "test"] and list(small().splits) == ["train"]
    assert [fed.train, fed.validation, fed.test] == list(fed.splits.values())
    assert small().validation is None and small().test is None


def test_replace_keeps_all_other_parts():
    fed = named()
    same = fed.replace()
    equal(fed, same)
    assert same is not fed and same.splits == fed.splits and same.global_test[0] is fed.global_test[0]
    less = fed.replace(test=None, global_test=None)
    assert list(less.splits) == ["train", "validation"] and less.global_test is None and less.facts == FACTS
    more = less.replace(test=fed.train)
    assert list(more.splits) == ["train", "validation", "test"] and more.test is fed.train and more.facts == FACTS
    wider = fed.replace(classes=9, label_names=None)
    assert wider.facts == {**FACTS, "classes": 9, "label_names": None} and fed.facts == FACTS
    with says("There are 1 names"):
        fed.replace(names=["a"])
    with says("4 names of labels and 9 classes"):
        fed.replace(classes=9)
    with says("The test split has 1 clients and the training split 4"):
        fed.replace(test=Columns(fed.train.x, fed.train.y, [0, len(fed.train.x)]))
    with pytest.raises(TypeError, match="tests"):
        fed.replace(tests=fed.train)


def test_map_reaches_every_split():
    fed = named()
    twice = fed.map(lambda columns: Columns(2 * columns.x, columns.y, columns.offsets))
    assert list(twice.splits) == list(fed.splits) and twice.facts == FACTS
    for name, columns in fed.splits.items():
        assert torch.equal(twice.splits[name].x, 2 * columns.x)
        assert np.array_equal(twice.splits[name].offsets, columns.offsets)
    assert twice.global_test[0] is fed.global_test[0]
    pair = fed.map(lambda columns: columns.take(np.arange(columns.offsets[2]), columns.sizes[:2]), names=["a", "b"])
    assert len(pair) == 2 and pair.names == ["a", "b"] and torch.equal(pair.test.of(1)[0], fed.test.of(1)[0])
    assert fed.map(lambda columns: columns, validation=None).validation is None


def test_names_survive(tmp_path):
    fed = named()
    assert fed.facts == FACTS  # they survived split_clients
    assert fed.to("cpu", torch.float64).facts == FACTS and fed.to("cpu", torch.float64).train.x.dtype == torch.float64
    assert fed.mapped(tmp_path / "columns").facts == FACTS
    pooled = fed.pooled()
    assert len(pooled) == 1 and pooled.facts == {**FACTS, "names": None} and pooled.train.x is fed.train.x
    assert list(pooled.splits) == list(fed.splits) and pooled.global_test[0] is fed.global_test[0]
    placed = alone(pooled, 2, 5)
    assert placed.facts == pooled.facts and placed.test.sizes.tolist() == [0, 0, len(fed.test.x), 0, 0]


def test_a_remote_federation_has_kinds_and_sizes_only():
    like = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    sizes = {"train": np.array([2, 10**6]), "validation": np.zeros(2, int), "test": np.array([0, 4])}
    fed = RemoteFederation.from_sizes(sizes, like, keys=["k", "l"], classes=2, names=["a", "b"], global_test=(X, Y % 2))
    assert list(fed.splits) == ["train", "test"] and fed.sizes.tolist() == [2, 10**6]
    moved = fed.to("cpu", torch.float64)
    assert type(moved) is RemoteFederation and moved.facts == fed.facts and moved.fingerprint() == fed.fingerprint()
    for name, columns in moved.splits.items():
        assert np.array_equal(columns.offsets, fed.splits[name].offsets) and columns.x.dtype == torch.float64
        assert columns.x.untyped_storage().nbytes() == 2 * 8 and columns.y.untyped_storage().nbytes() == 8
    assert moved.global_test[0].dtype == torch.float64
    with says("a method that pools them"):
        fed.pooled()


def test_a_remote_federation_is_known_by_its_clients_keys():
    def remote(keys, names=("a", "b")):
        like = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
        return RemoteFederation.from_sizes({"train": np.array([2, 3])}, like, keys=keys, classes=2, names=list(names))

    known = remote(["k", "l"]).fingerprint()
    assert remote(["k", "l"], ("other", "names")).fingerprint() == known
    assert remote(["k", "m"]).fingerprint() != known != remote(["l", "k"]).fingerprint()


# ---- folders


def write(folder, name, **arrays):
    if name.endswith(".npz"):
        np.savez(folder / name, **arrays)
    else:
        save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, folder / name)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_from_folder(tmp_path, suffix):
    arrays = clients([5, 1, 8, 2])
    for name, (x, y) in zip("dbca", arrays, strict=True):
        write(tmp_path, name + suffix, x=x, y=y.astype(np.int32), x_test=x[:1], y_test=y[:1].astype(np.int32))
    write(tmp_path, "_test" + suffix, x=arrays[0][0], y=arrays[0][1])
    (tmp_path / "README.md").write_text("about these data")
    fed = Federation.from_folder(tmp_path)
    assert fed.names == ["a", "b", "c", "d"] and fed.sizes.tolist() == [2, 1, 8, 5]
    assert np.array_equal(fed.train.of(3)[0], arrays[0][0]) and fed.train.y.dtype == torch.int64
    assert fed.test.sizes.tolist() == [1] * 4 and len(fed.global_test[0]) == 5
    fed.check()
    split = Federation.from_folder(tmp_path, validation_fraction=0.25, seed=1)
    assert split.validation.sizes.tolist() == [1, 0, 2, 1]
    with says("test=0.2 was asked for but the clients have a test split"):
        Federation.from_folder(tmp_path, test_fraction=0.2)


@pytest.mark.parametrize(
    "name, arrays, pieces",
    [
        ("b.npz", {"x": X}, [r"b\.npz has no y:"]),
        ("b.npz", {"z": X}, [r"b\.npz has an unknown key 'z'"]),
        ("b.npz", {"x": X, "y": Y, "x_tests": X}, ["unknown key 'x_tests'", "Did you mean 'x_test'"]),
        ("b.npz", {"x": X, "y": Y, "x_test": X}, [r"b\.npz has no y_test"]),
        ("b.npz", {"x": X, "y": Y, "x_test": X, "y_test": Y}, [r"b\.npz has the keys", r"a\.npz x, y", "same keys"]),
        ("b.npz", {"x": X[:, :1], "y": Y}, [r"b\.npz has x", r"\[1\]", r"a\.npz"]),
        ("b.npz", {"x": X, "y": Y[:1]}, [r"x of .*b\.npz has shape \[3, 2\] and y \[1\]"]),
        ("b.npz", {"x": X * np.nan, "y": Y}, [r"b\.npz: x has NaN"]),
        ("b.npz", {"x": X, "y": np.array(["a", "b", "c"])}, [r"y of .*b\.npz", "numeric"]),
        ("b.npz", {"x": X.astype(object), "y": Y}, [r"b\.npz holds pickled objects"]),
        ("b.npz", {"x": X[:0], "y": Y[:0]}, [r"b\.npz has no training samples"]),
        ("a.safetensors", {"x": X, "y": Y}, ["'a' as .npz and as .safetensors"]),
        ("_tset.npz", {"x": X, "y": Y}, [r"_tset\.npz: of the names that begin with '_'"]),
        ("_test.npz", {"x": X[:, :1], "y": Y}, [r"_test\.npz has x", "the clients"]),
        ("_test.npz", {"x": X, "y": Y, "x_test": X, "y_test": Y}, [r"_test\.npz has the keys", "x and y only"]),
    ],
)
def test_from_folder_refuses(tmp_path, name, arrays, pieces):
    write(tmp_path, "a.npz", x=X, y=Y)
    write(tmp_path, name, **arrays)
    with says(*pieces):
        Federation.from_folder(tmp_path)


def test_from_folder_refuses_what_is_no_data(tmp_path):
    with says("is not a folder"):
        Federation.from_folder(tmp_path / "nowhere")
    with says("has no client files"):
        Federation.from_folder(tmp_path)
    for name in ("b.npz", "b.safetensors"):
        (tmp_path / name).write_bytes(b"this is no archive")
        with says(rf"{name} cannot be read"):
            Federation.from_folder(tmp_path)
        (tmp_path / name).unlink()
    with open(tmp_path / "c.npz", "wb") as file:
        np.save(file, X)  # one array, not an archive
    with says(r"c\.npz cannot be read"):
        Federation.from_folder(tmp_path)


# ---- memory maps, devices, fingerprints


def test_mapped_round_trip(tmp_path):
    fed = small(test=(X[:, [0, 0, 0]].astype(np.float32), Y), names=list("abcd")).split_clients(test=0.3)
    mapped = fed.mapped(tmp_path / "deep" / "columns")
    equal(fed, mapped)
    again = Federation.open_mapped(tmp_path / "deep" / "columns")
    equal(fed, again)
    assert fed.fingerprint() == mapped.fingerprint() == again.fingerprint()
    again.train.x[0, 0] = 99.0  # stays private
    equal(fed, Federation.open_mapped(tmp_path / "deep" / "columns"))
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["columns"]
    with says("columns exists already"):
        fed.mapped(tmp_path / "deep" / "columns")
    (tmp_path / "empty").mkdir()
    equal(small(client_tests=[None] * 4).mapped(tmp_path / "empty"), small(client_tests=[None] * 4))


def test_open_mapped_refuses(tmp_path):
    with says("nowhere is not a complete folder of columns"):
        Federation.open_mapped(tmp_path / "nowhere")
    small().mapped(tmp_path / "columns")
    (tmp_path / "columns" / "training_x.npy").write_bytes(b"short")
    with says("columns is not a complete folder"):
        Federation.open_mapped(tmp_path / "columns")
    (tmp_path / "columns" / "columns.json").write_text('{"format": "unalike-columns-1", "parts": []}')
    with says("columns is not a complete folder", "train"):
        Federation.open_mapped(tmp_path / "columns")
    (tmp_path / "columns" / "columns.json").write_text('{"format": "other"}')
    with says("has the format 'other'"):
        Federation.open_mapped(tmp_path / "columns")
    with says("bfloat16", r"call \.to\('cpu', torch\.float32\)"):
        small().to("cpu", torch.bfloat16).mapped(tmp_path / "half")
    assert not (tmp_path / "half").exists()
    (tmp_path / "file").write_text("")
    with says("could not be written"):
        small().mapped(tmp_path / "file" / "columns")


def test_to():
    fed = synthetic.feddc(clients=2)
    assert fed.to("cpu") is fed and fed.to("cpu", torch.float64) is fed
    half = fed.to("cpu", torch.float32)
    assert half.train.x.dtype == torch.float32 and half.train.y.dtype == torch.int64
    assert half.global_test[0] is half.train.x  # moved once
    assert fed.train.x.dtype == torch.float64
    tokens = Federation.from_arrays([(np.zeros((2, 4), np.int32), [0, 1])])
    assert tokens.to("cpu", torch.float32) is tokens


def test_fingerprint_sees_every_change():
    def fed(change=lambda x, y, offsets: None, classes=4):
        x, y, offsets = torch.arange(24.0).reshape(8, 3), torch.arange(8) % 4, np.array([0, 2, 8])
        change(x, y, offsets)
        return Federation(Columns(x, y, offsets), classes=classes).fingerprint()

    prints = [
        fed(),
        fed(lambda x, y, o: x[5].mul_(1.001)),
        fed(lambda x, y, o: y[5].fill_(3)),
        fed(lambda x, y, o: o.__setitem__(1, 3)),
        fed(classes=5),
        small().fingerprint(),
        small().to("cpu", torch.float64).fingerprint(),
        small().split_clients(test=0.3).fingerprint(),
    ]
    assert len(set(prints)) == len(prints) and fed() == prints[0]
    assert all(len(p) == 16 and int(p, 16) >= 0 for p in prints)


def test_fingerprint_samples_large_columns(monkeypatch):
    monkeypatch.setattr(public_module, "WHOLE_BYTES", 100)
    fed = Federation(Columns(torch.arange(300.0).reshape(100, 3), torch.zeros(100).long(), [0, 100]))
    seen = {fed.fingerprint()}
    for row in (0, 12, 24, 99):  # 1,200 bytes: every 12th row, and the last
        fed.train.x[row] += 1
        seen.add(fed.fingerprint())
    assert len(seen) == 5
    fed.train.x[5] += 1
    assert fed.fingerprint() in seen


def test_population_is_an_index():
    n = 200_000
    x = np.ones((2 * n, 4), np.float32)
    fed = Federation(Columns(x, np.arange(2 * n) % 10, np.arange(0, 2 * n + 1, 2)))
    fed.check()
    assert len(fed.fingerprint()) == 16
    assert fed.label_counts().sum() == 2 * n
    split = fed.split_clients(test=0.5)
    assert (split.sizes == 1).all() and (split.test.sizes == 1).all()
    x[-1] = np.nan
    with says(f"client {n - 1}, sample 1"):
        fed.check()
