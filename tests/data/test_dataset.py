"""Data sets with columns, and how they are split."""

import json

import numpy as np
import pytest
import torch
from paths import GOLDEN

from unalike.data import Dataset, partition
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


WRITERS = np.array(["eve", "bob", "eve", "ann", "bob", "eve", "dan", "ann", "bob", "eve"])
TESTERS = np.array(["ann", "zoe", "eve", "eve", "dan"])


def letters(**options):
    """Ten rows whose x is their number; five test rows numbered from 100."""
    x, y = torch.arange(10.0).reshape(10, 1), torch.arange(10) % 3
    test = (torch.arange(100.0, 105).reshape(5, 1), torch.arange(5) % 3)
    given = {
        "columns": {"writer": WRITERS, "hand": np.array([0, 1] * 5)},
        "test_columns": {"writer": TESTERS},
        "natural": "writer",
    }
    return Dataset(x, y, test=test, classes=3, name="letters", **(given | options))


def rows(columns):
    return [columns.of(k)[0][:, 0].int().tolist() for k in range(len(columns))]


def test_natural_is_the_default_and_exact():
    fed = letters().split()
    assert fed.names == ["ann", "bob", "dan", "eve"]
    assert rows(fed.train) == [[3, 7], [1, 4, 8], [6], [0, 2, 5, 9]]
    assert fed.test is None and len(fed.global_test[0]) == 5 and fed.classes == 3
    fed.check()


def test_the_largest_natural_clients():
    fed = letters().split(clients=2)
    assert fed.names == ["bob", "eve"] and rows(fed.train) == [[1, 4, 8], [0, 2, 5, 9]]
    assert letters().split("natural", clients=3).names == ["ann", "bob", "eve"]
    with says("must give 5 clients but there are 4: ask for at most 4"):
        letters().split(clients=5)


def test_another_column():
    fed = letters().split("natural:hand")
    assert fed.names == ["0", "1"] and rows(fed.train) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert letters(natural=None).split(partition.Natural("writer"), clients=1).names == ["eve"]


def test_without_a_natural_column():
    data = Dataset(np.zeros((40, 2)), np.arange(40) % 4)
    fed = data.split()
    assert len(fed) == 10 and fed.names is None and fed.sizes.tolist() == [4] * 10
    with says("'data' does not say who its clients are", "natural:user", "another partition"):
        data.split("natural")
    assert len(letters().split("iid")) == 10 and letters().split("iid", clients=3).names is None


def test_natural_test_rows_go_to_the_same_clients():
    fed = letters().split(test="same")
    assert rows(fed.test) == [[100], [], [104], [102, 103]]  # zoe has nothing to train on
    assert len(fed.global_test[0]) == 5
    fed.check()
    fed = letters().split(clients=2, test="same", validation=0.25)
    assert fed.names == ["bob", "eve"] and rows(fed.test) == [[], [102, 103]]
    assert sorted(torch.cat([fed.train.x, fed.validation.x])[:, 0].tolist()) == [0, 1, 2, 4, 5, 8, 9]
    assert fed.validation.sizes.tolist() == [1, 1]


def test_similarity_test_rows_as_the_authors_deal_them():
    golden = json.loads((GOLDEN / "partition_rfedavg_similarity.json").read_text())
    y, ty = golden["train_labels"], golden["test_labels"]
    data = Dataset(np.arange(len(y))[:, None] * 1.0, y, test=(np.arange(len(ty))[:, None] * 1.0, ty))
    fed = data.split("similarity:0.1:drop", clients=5, seed=0, test="same")
    assert rows(fed.train) == [client["train"] for client in golden["results"]["s=0.1"]]
    assert rows(fed.test) == [client["test"] for client in golden["results"]["s=0.1"]]
    assert len(fed.global_test[0]) == len(ty)
    spread = data.split("similarity:0.1", clients=5, seed=0, test="same")
    assert len(spread.train.x) == len(y) and len(spread.test.x) == len(ty)


def test_shares_are_carved_inside_each_client():
    values = np.repeat(np.arange(5), 20)
    data = Dataset(values[:, None] * 1.0, np.arange(100) % 2, columns={"person": values}, natural="person")
    fed = data.split(test=0.2, validation=0.1, seed=3)
    for columns, size in ((fed.train, 14), (fed.validation, 2), (fed.test, 4)):
        assert [set(part) for part in rows(columns)] == [{k} for k in range(5)]
        assert columns.sizes.tolist() == [size] * 5


def test_empty_clients_are_refused_or_left_out():
    data = Dataset(np.arange(6)[:, None] * 1.0, np.arange(6) % 2)

    def own(labels, clients, seed):
        return [np.array([0, 1]), np.array([], np.int64), np.array([4])][:clients]

    with says("leaves 1 of 3 clients empty", "drop_empty=True"):
        data.split(own, clients=3)
    fed = data.split(own, clients=3, drop_empty=True)
    assert rows(fed.train) == [[0, 1], [4]]
    fed.check()
    with says("leaves 2 of 2 clients empty"):
        data.split(lambda labels, clients, seed: [[], []], clients=2, drop_empty=True)
    labels = np.arange(100) % 2
    drawn = Dataset(labels[:, None] * 1.0, labels)
    with says("The partition dirichlet:0.01:0 leaves", "drop_empty"):
        drawn.split("dirichlet:0.01:0", clients=50)
    fed = drawn.split("dirichlet:0.01:0", clients=50, drop_empty=True)
    assert 0 < len(fed) < 50 and fed.sizes.sum() == 100


def test_split_refuses():
    with says("test='same' does not go with the partition dirichlet:0.3", "'similarity' or 'natural'"):
        letters().split("dirichlet:0.3", clients=2, test="same")
    with says("test='smae' must be a share", "or 'same'"):
        letters().split(test="smae")
    with says("test='same' needs the column 'hand' of the test rows"):
        letters().split("natural:hand", test="same")
    with says("'letters' has no column 'writr'. Did you mean 'writer'"):
        letters().split("natural:writr")
    with says("'letters' has no column 'writr'. Did you mean 'writer'"):
        letters(natural="writr")
    with says("test='same' was asked for but 'data' has no test set"):
        Dataset(np.zeros((4, 1)), [0, 1, 0, 1]).split("similarity:0", clients=2, test="same")
    with says("leaves none for any of 4 clients"):
        letters().split("similarity:0.5:drop", clients=4, test="same")
    with says("clients=0 must be"):
        letters().split(clients=0)


@pytest.mark.parametrize(
    "values, pieces",
    [
        (WRITERS[:9], ["'writer' of 'letters' has 9 values for 10 training rows"]),
        (np.zeros(10), ["dtype float64", "one text or whole number per row"]),
        (WRITERS.reshape(5, 2), [r"shape \[5, 2\]"]),
        (np.array([None, *WRITERS[1:]], object), ["dtype object", "fill what is missing"]),
    ],
)
def test_columns_are_checked(values, pieces):
    with says(*pieces):
        letters(columns={"writer": values})


def test_columns_of_objects_and_lists():
    data = letters(columns={"writer": WRITERS.astype(object), "hand": [0, 1] * 5})
    assert data.split().names == ["ann", "bob", "dan", "eve"] and len(data.split("natural:hand")) == 2
    assert "clients by 'writer'" in repr(data) and "clients by" not in repr(letters(natural=None))
    with says("'writer' of 'letters' has 4 values for 5 test rows"):
        letters(test_columns={"writer": TESTERS[:4]})


def test_names_of_labels_stay_with_the_data(tmp_path):
    x, y = np.zeros((12, 2), np.float32), np.arange(12) % 3
    data = Dataset(x, y, label_names=["cat", "dog", "owl"])
    fed = data.split("iid", clients=2, test=0.2)
    for same in (fed, fed.pooled(), fed.to("cpu", torch.float64), fed.mapped(tmp_path / "columns")):
        assert same.label_names == ["cat", "dog", "owl"]
    with pytest.raises(UnalikeError, match="There are 2 names of labels and 3 classes"):
        Dataset(x, y, label_names=["cat", "dog"])
