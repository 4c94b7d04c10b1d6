"""Somebody's own table, and everything that can be wrong with it."""

import csv
import functools
import io
import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unalike import core
from unalike.data import table_files, tables
from unalike.data.tables import remarks, table_dataset
from unalike.errors import UnalikeError

# in the table's own units, so that what was read can be seen
from_table = functools.partial(tables.from_table, scale="none")
from_huggingface = functools.partial(tables.from_huggingface, scale="none")


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


GOOD = """hospital,outcome,age,dose,sex
north,ill,61,0.5,f
south,well,42,1,m
north,well,33,1.5,m
south,ill,70,-2e1,f
south,well,55,0,f
"""


@pytest.fixture
def table(tmp_path):
    def write(text=GOOD, name="a.csv", encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return tmp_path / name

    return write


def test_a_table(table):
    fed = from_table(table(), "hospital", "outcome", ["age", "dose"])
    assert fed.names == ["north", "south"] and fed.label_names == ["ill", "well"] and fed.classes == 2
    x, y = fed.train.of(0)
    assert x.tolist() == [[61, 0.5], [33, 1.5]] and y.tolist() == [0, 1]
    x, y = fed.train.of(1)
    assert x.tolist() == [[42, 1], [70, -20], [55, 0]] and y.tolist() == [1, 0, 1]
    fed.check()


def test_categories_become_zeros_and_ones_in_place(table):
    read = table_dataset(table(), "outcome", ["age", "sex", "dose"], columns=["hospital"], categorical=["sex"])
    assert read.schema.features == ["age", "sex=f", "sex=m", "dose"]
    assert read.x[:2].tolist() == [[61, 1, 0, 0.5], [42, 0, 1, 1]] and read.x.dtype == torch.float64
    assert read.columns["hospital"].tolist() == ["north", "south", "north", "south", "south"]
    fed = from_table(table(), "hospital", "outcome", categorical=["sex"])  # features: all the others
    assert fed.train.x.shape == (5, 4)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_found(table, delimiter):
    fed = from_table(table(GOOD.replace(",", delimiter)), "hospital", "outcome", categorical=["sex"])
    assert fed.fingerprint() == from_table(table(), "hospital", "outcome", categorical=["sex"]).fingerprint()


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("south,", '"south",').replace("61", '"61"'),
        GOOD.replace("\n", "\n\n"),
        GOOD.rstrip("\n"),
        "\n" + GOOD.replace(",", " , "),
    ],
    ids=["BOM", "CRLF", "quotes", "blank lines", "no newline at the end", "spaces"],
)
def test_the_same_table_written_otherwise(table, text):
    wanted = from_table(table(), "hospital", "outcome", categorical=["sex"])
    fed = from_table(table(text, "b.csv"), "hospital", "outcome", categorical=["sex"])
    assert fed.fingerprint() == wanted.fingerprint()
    assert fed.names == wanted.names and fed.label_names == wanted.label_names


def test_quoted_newlines_and_delimiters(table):
    text = 'site,y,note,a\n"St. Mary,\nLondon",0,"x\n""y""",1\nB,1,z,2\nB,0,z,3\n"St. Mary,\nLondon",1,z,4\n'
    fed = from_table(table(text), "site", "y", ["a"])
    assert fed.names == ["B", "St. Mary,\nLondon"] and fed.train.x.ravel().tolist() == [2, 3, 1, 4]
    with says("'a' of", "'two' in line 6"):
        from_table(table(text.replace("z,3", "z,two")), "site", "y", ["a"])


def test_numbers_sort_as_numbers(table):
    fed = from_table(table("c,y,a\n10,10,1\n2,2,2\n10,2,3\n2,-1,4\n"), "c", "y")
    assert fed.names == ["2", "10"] and fed.label_names == ["-1", "2", "10"]
    assert fed.train.y.tolist() == [1, 0, 2, 1]
    fed = from_table(table("c,y,a\n010,a,1\n2,b,2\n010,b,3\n2,b,4\n2,a,4\n"), "c", "y")
    assert fed.names == ["010", "2"]


def test_latin_1(table):
    text = GOOD.replace("north", "nørd")
    with says("is not utf-8 text", "encoding"):
        from_table(table(text, encoding="latin-1"), "hospital", "outcome", ["age"])
    fed = from_table(table(text, encoding="latin-1"), "hospital", "outcome", ["age"], encoding="latin-1")
    assert fed.names == ["nørd", "south"]


WRONG = [
    ("", "a.csv is empty"),
    ("\n\n", "a.csv is empty"),
    ("hospital,outcome,age,dose,sex\n", "column names but no rows"),
    (GOOD.replace(",", " "), "a single column 'hospital outcome age dose sex'", "delimiter"),
    (GOOD.replace("dose", "age"), "two columns called 'age'"),
    (GOOD.replace("hospital", "hospitol"), "no column 'hospital'. Did you mean 'hospitol'"),
    (GOOD.replace("33", "old"), "'age' of", "is a number but has 'old' in line 4", "categorical"),
    (GOOD.replace("33", "inf"), "'age' of", "has 'inf' in line 4"),
    (GOOD.replace("33", "1e39"), "'age' of", "has '1e39' in line 4"),
    (GOOD.replace("33", "3,3"), "6 cells in line 4 and 5 column names"),
    (GOOD.replace(",1.5,m", ""), "3 cells in line 4 and 5 column names"),
    (GOOD.replace("\nnorth,well", "\n,well"), "'hospital' of", "is empty in line 4"),
    (GOOD.replace("south,ill", "south,"), "'outcome' of", "is empty in line 5"),
    (GOOD.replace("ill", "well"), "'outcome' of", "is 'well' in every row"),
    (GOOD.replace("33,1.5", '33,"1.5'), "a.csv, line"),
    (GOOD.replace("dose", ""), "a column without a name .column 4.", "index=False"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w[1][:40])
def test_what_is_wrong_with_a_table(table, wrong):
    text, *pieces = wrong
    with says(*pieces):
        from_table(table(text), "hospital", "outcome", None if "without a name" in pieces[0] else ["age"])


def test_labels_that_are_no_classes(table):
    rows = "".join(f"{'ab'[i % 2]},{i},1\n" for i in range(10))
    with says("'y' of", "another value in each of 10 rows", "regression"):
        from_table(table("c,y,x\n" + rows), "c", "y")
    with says("client column 'y' has another value in each of 10 rows"):
        from_table(table("c,y,x\n" + rows), "y", "c")
    fed = from_table(table("c,y,x\na,0.5,1\na,0.5,2\nb,1,3\nb,2,3\n"), "c", "y", regression=True)
    assert fed.classes is None and fed.train.y.tolist() == [0.5, 0.5, 1, 2] and fed.label_names is None
    assert fed.train.y.dtype == torch.float64
    with says("'y' of", "is the target of a regression but has 'high' in line 3"):
        from_table(table("c,y,x\na,0.5,1\na,high,2\n"), "c", "y", regression=True)


def test_wrong_requests(table):
    file = table()
    for given_, pieces in [
        ({"features": "age"}, ("features='age' must be a list", "write .'age'.")),
        ({"features": ["age", "age"]}, ("each column once",)),
        ({"features": []}, ("one column or more",)),
        ({"features": ["outcome"]}, ("'outcome' is the label, the client or the time",)),
        ({"features": ["age"], "categorical": ["sex"]}, ("'sex' is categorical but not a feature",)),
        ({"features": ["agee"]}, ("no column 'agee'. Did you mean 'age'",)),
    ]:
        with says(*pieces):
            from_table(file, "hospital", "outcome", **given_)
    with says("'outcome' is the label and also"):
        from_table(file, "outcome", "outcome", ["age"])
    with says("missing.csv does not exist"):
        from_table(file.parent / "missing.csv", "a", "b")
    with says("A int is no table"):
        from_table(3, "a", "b")


def test_clients_that_say_little_get_one_line_each(table):
    rows = ["one,0,1", *["same,1,2"] * 3, *["both,0,1", "both,1,2"]]
    with pytest.warns(UserWarning) as told:
        fed = from_table(table("c,y,x\n" + "\n".join(rows)), "c", "y")
    assert (
        [str(w.message) for w in told]
        == remarks(fed)
        == [
            "1 of 3 clients have one sample (client 1 ('one')): nothing of theirs can be held out for a test.",
            "1 of 3 clients have samples of one class (client 2 ('same')): their own accuracy says little.",
        ]
    )


def test_a_test_share_and_a_test_table(table):
    rows = "".join(f"{'ab'[i % 2]},{'xy'[i % 3 == 0]},{i / 2},{'pq'[i % 2]}\n" for i in range(40))
    file = table("c,y,v,k\n" + rows)
    fed = from_table(file, "c", "y", categorical=["k"], test=0.25, validation=0.1, seed=1)
    assert len(fed.train.x) == 26 and len(fed.test.x) == 10 and len(fed.validation.x) == 4
    second = table("k,v,y\nq,1,x\n", "b.csv")  # no client, another order, not every value
    fed = from_table(file, "c", "y", categorical=["k"], test=second)
    assert fed.global_test[0].tolist() == [[1, 0, 1]] and fed.global_test[1].tolist() == [0]
    with says("'y' of", "b.csv has 'z' in line 3"):
        from_table(file, "c", "y", categorical=["k"], test=table("k,v,y\nq,1,x\nq,1,z\n", "b.csv"))
    with says("test=0.2 is a share: give it to Dataset.split"):
        table_dataset(file, "y", ["v"], test=0.2)


def test_a_dataset_to_be_partitioned(table):
    rows = "".join(f"{'ab'[i % 2]},{i % 5},{'xy'[i % 3 == 0]},{i / 2}\n" for i in range(40))
    file = table("c,region,y,v\n" + rows)
    data = table_dataset(file, "y", ["v"])
    assert len(data) == 40 and data.name == "a" and data.classes == 2 and data.label_names == ["x", "y"]
    assert len(data.split("iid", clients=4)) == 4
    data = table_dataset(file, "y", client="c", columns=["region"])
    assert data.x.shape == (40, 1) and data.columns["region"].dtype == np.int64
    assert data.split().names == ["a", "b"] and len(data.split("natural:region")) == 5
    assert data.split().fingerprint() == tables.from_table(file, "c", "y", ["v"]).fingerprint()


def test_a_table_in_a_config(table, tmp_path):
    rows = "".join(f"{'ab'[i % 2]},{'xy'[i % 3 == 0]},{i / 40}\n" for i in range(40))
    file = table("c,y,v\n" + rows)
    (tmp_path / "run.toml").write_text(
        f"[run]\nfolder = {json.dumps(str(tmp_path / 'run'))}\nrounds = 1\n"
        f'[data]\ntable = {json.dumps(str(file))}\nclient = "c"\nlabel = "y"\ntest = 0.2\n'
        '[model]\nname = "mlp"\n[method]\nname = "fedavg"\n'
    )
    assert core.main([str(tmp_path / "run.toml")]) == 0
    assert json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])["round"] == 1


# ---- tables in memory


def test_a_dict_of_columns():
    columns = {"c": ["b", "a", "b", "a"], "y": [True, False, False, True], "u": [1, 2, 3, 4], "v": np.arange(4.0)}
    fed = from_table(columns, "c", "y")
    assert fed.label_names == ["False", "True"] and fed.train.x.tolist() == [[2, 1], [4, 3], [1, 0], [3, 2]]
    windows = {"c": [1, 1, 2, 2], "y": [0, 1, 0, 1], "w": np.arange(24.0).reshape(4, 2, 3)}
    assert from_table(windows, "c", "y").train.x.shape == (4, 2, 3)  # a single column keeps its shape
    for wrong, pieces in [
        ({**columns, "v": [1, 2]}, ("unequal lengths",)),
        ({**columns, "v": [1, 2, np.inf, 3]}, ("'v' of the table is a number but has 'inf' in row 3",)),
        ({**columns, "w": np.zeros((4, 2))}, ("'w' of the table has .2. numbers per row", "features=.'w'.")),
        ({"c": [1, 1, 2], "y": [0, 1, 0], "w": [[1, 2], [np.nan, 1], [1, 1]]}, ("'w'", "missing or infinite in row 2")),
        ({**columns, "v": [1, 2, 3, "x"]}, ("'v' of the table is a number but has 'x' in row 4",)),
        ({**columns, "c": ["a", None, "b", "b"]}, ("'c' of the table is empty in row 2",)),
        ({**columns, "v": [[1], [1, 2], [3], [4]]}, ("'v' of the table has rows of unequal shape",)),
        ({"c": [], "y": [], "v": []}, ("no rows",)),
    ]:
        with says(*pieces):
            from_table(wrong, "c", "y")


class Series:
    def __init__(self, values):
        self.values = np.asarray(values)

    def to_numpy(self):
        return self.values


class Frame:
    """As pandas and polars look from outside."""

    def __init__(self, columns):
        self.columns, self.content = list(columns), columns

    def __getitem__(self, name):
        return Series(self.content[name])


def test_a_data_frame():
    frame = Frame({"c": np.array([1.0, 2, 1, 2]), "y": np.array(["a", "b", "b", "a"], object), "v": np.arange(4)})
    fed = from_table(frame, "c", "y")
    assert fed.names == ["1", "2"] and fed.train.x.ravel().tolist() == [0, 2, 1, 3]


class HuggingFace:
    """As `datasets` looks from outside: a column is a list, a label may have names."""

    def __init__(self, columns, **names):
        self.column_names, self.content = list(columns), columns
        self.features = {name: type("Feature", (), {"names": names.get(name)}) for name in columns}

    def __getitem__(self, name):
        return self.content[name]


class Image:
    def __init__(self, pixels):
        self.pixels, self.mode = pixels, "L" if pixels.ndim == 2 else "RGB"

    def getbands(self):
        return tuple(self.mode)

    def __array__(self, dtype=None, copy=None):
        return self.pixels.astype(dtype)


def test_hugging_face():
    pixels = np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3)
    columns = {"image": [Image(p) for p in pixels], "label": [1, 0, 1, 0], "who": ["b", "a", "a", "b"]}
    data = HuggingFace(columns, label=["cat", "dog"])
    fed = from_huggingface(data, "who", "label", image="image")
    assert fed.label_names == ["cat", "dog"] and fed.names == ["a", "b"] and fed.train.x.shape == (4, 3, 2, 3)
    assert np.allclose(fed.train.x[0], pixels[1].transpose(2, 0, 1) / 255)
    fed = from_huggingface({"train": data, "test": data}, "who", "label", image="image")
    assert fed.global_test[1].tolist() == [1, 0, 1, 0]
    plain = HuggingFace({"label": [0, 1, 1, 0], "a": [1, 2, 3, 4], "who": [1, 1, 2, 2]})
    assert from_huggingface(plain, "who", "label").train.x.tolist() == [[1], [2], [3], [4]]
    with says("no 'train'"):
        from_huggingface({"validation": data}, "who", "label")
    with says("A list is no Hugging Face data set"):
        from_huggingface([1], "who", "label")
    columns["image"][1] = Image(pixels[1][:1])
    with says("'image' of the table has rows of unequal shape"):
        from_huggingface(data, "who", "label", image="image")


def test_parquet_without_a_reader(tmp_path, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(table_files.importlib, "import_module", absent)
    with says("a.parquet needs pyarrow, polars or pandas"):
        from_table(tmp_path / "a.parquet", "c", "y")


# ---- the fast reader and the exact one

CELL = st.one_of(
    st.integers(-5, 5).map(str),
    st.floats(allow_nan=False, width=32).map(repr),
    st.sampled_from(["", " ", "nan", "x", 'a"b', "a,b", "a\nb", "é", " 1 ", "1_0", "#1", "0x1", "1e5", "1d2", "٣"]),
)
fuzz = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_clean_table_is_read_at_once(table):
    file = table_files.Csv(table('"hos\npital",age,sex\nnorth,61,f\n'), None, "utf-8-sig")
    names = ["age", "hos\npital"]
    assert file._numbers(names) == {"age": True}
    found = file._at_once({"age": True}, names)
    assert found is not None and found["age"].tolist() == [61] and found["hos\npital"].values == ["north"]


@fuzz
@given(st.lists(st.tuples(CELL, CELL, st.integers(0, 3).map(str)), min_size=1, max_size=6), st.sampled_from("\n\r"))
def test_both_readers_agree(table, rows, end):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n" if end == "\n" else "\r\n").writerows([("c", "x", "y"), *rows])
    file = table_files.Csv(table(text.getvalue()), None, "utf-8-sig")
    numbers = file._numbers(["x"])
    try:
        wanted = file._row_by_row(numbers, ["x", "c", "y"])
    except UnalikeError:
        wanted = None
    found = file._at_once(numbers, ["x", "c", "y"])
    if found is None:
        return  # the exact reader decides
    assert wanted is not None
    for one, two in zip(found.values(), wanted.values(), strict=True):
        assert type(one) is type(two)
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, two, equal_nan=True)
        else:
            assert one.values == two.values and np.array_equal(one.codes, two.codes)


@fuzz
@given(st.data())
def test_damaged_tables(table, data):
    good = GOOD.encode()
    place = data.draw(st.integers(0, len(good) - 1))
    noise = data.draw(st.binary(max_size=6))
    kept = data.draw(st.sampled_from([b"", good[place:], good[place + 1 :]]))
    try:
        from_table(table(good[:place] + noise + kept), "hospital", "outcome", categorical=["sex"])
    except (UnalikeError, UserWarning) as error:  # a warning is an error in tests
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("c,y,x\na,ill,1\nb,inf,2\n", ("'y' of", "has inf in line 3", "remove the row")),
        ("c,y,x\na,ill,1\nb,nan,2\nb,,2\n", ("'y' of", "is empty in line 3 and in 1 other row", "--missing drop")),
        ("c,y\na,ill\nb,well\n", ("one column or more must be features", "'y' and 'c'")),
        ("c,y,x\na,0,1\nb,1,1_000\n", ("'x' of", "'1_000' in line 3")),
        ("c,y,x\na,0,1\nb,1,٣\n", ("'x' of", "in line 3")),
    ],
)
def test_what_only_looks_right(table, text, pieces):
    with says(*pieces):
        from_table(table(text), "c", "y")


def test_features_are_in_comparable_units_unless_it_is_said(table):
    fed = tables.from_table(table(), "hospital", "outcome", categorical=["sex"])
    mean, spread = fed.train.x.mean(0), fed.train.x.std(0, unbiased=False)
    assert fed.preparation.features == ["age", "dose", "sex=f", "sex=m"] and not fed.preparation.own
    assert torch.allclose(mean[:2], torch.zeros(2), atol=1e-6) and torch.allclose(spread[:2], torch.ones(2))
    assert len(set(fed.train.x[:, 2].tolist())) == 2 and abs(mean[2]) < 1e-6
    assert tables.from_table(table(), "hospital", "outcome", categorical=["sex"], scale="client").preparation.own
    with says("scale", "standard"):
        tables.from_table(table(), "hospital", "outcome", categorical=["sex"], scale="minmax")
