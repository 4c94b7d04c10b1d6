"""A raw table: missing cells, dates, yes and no, decimal commas, row numbers, words that nobody announced."""

import datetime as dt
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tables import says

from unalike.data import Federation
from unalike.data.cells import Words, day, flag, number, ordered
from unalike.data.schema import Column, Schema
from unalike.data.tables import encoded, from_table, remarks, table_dataset

NAN = float("nan")


def rows(*columns):
    """A dict of columns c, y, a, b, …: two clients, two classes, and these columns of equal length."""
    n = len(columns[0])
    return {"c": ["n", "s"] * (n // 2) + ["n"] * (n % 2), "y": [k // 2 % 2 for k in range(n)]} | dict(
        zip("abdef", columns, strict=False)
    )


def read(table, **options):
    return table_dataset(table, "y", client="c", **options)


def column(values, **options):
    """What a single column of texts becomes: its kind, and x."""
    data = read(rows(values), **options)
    return data.schema.columns[0].kind, data.x[:, 0].tolist()


def same(one, two):
    return np.array_equal(np.asarray(one, float), np.asarray(two, float), equal_nan=True)


# ---- leaving columns out


def test_drop():
    table = rows([1.5, 2, 3, 4], ["w", "x", "y", "z"])
    assert read(table, drop=["b"]).schema.features == ["a"]
    fed = from_table(table, "c", "y", drop=["b"])
    assert fed.train.x.shape == (4, 1) and fed.schema.features == ["a"]
    for wrong, pieces in [
        (["bb"], ("no column 'bb'. Did you mean|There are",)),
        (["y"], ("'y' is the label, the client or the time: it cannot be dropped",)),
        (["c"], ("'c' is the label, the client or the time",)),
        ("b", ("drop='b' must be a list",)),
    ]:
        with says(*pieces):
            read(table, drop=wrong)
    with says("'b' is a feature: it cannot be dropped"):
        read(table, features=["a", "b"], drop=["b"])


# ---- missing cells


@pytest.mark.parametrize(
    "mark", ["", " ", "NaN", "nan", "NA", "n/a", "N/A", "null", "NULL", "None", "none", "?", "-", "."]
)
def test_marks_of_a_missing_number(mark):
    assert same(column(["1", mark, "3", "4"])[1], [1, NAN, 3, 4])


@pytest.mark.parametrize("mark", [None, NAN, dt.datetime, type("NAType", (), {"__str__": lambda self: "<NA>"})()])
def test_marks_in_frames(mark):
    if mark is dt.datetime:  # NaT
        data = read(rows(np.array(["2024-01-01", "NaT", "1970-01-02", "1970-01-01"], "datetime64[ns]")))
        assert data.schema.columns[0].kind == "date" and same(data.x[:, 0], [19723, NAN, 1, 0])
        return
    assert same(column([1, mark, 3, 4.5])[1], [1, NAN, 3, 4.5])


def test_a_missing_category_is_nan_in_all_its_features():
    data = read(rows(["u", "", "v", "u"], [1.5, 2, 3, 4]))
    assert data.schema.features == ["a=u", "a=v", "b"] and data.x.dtype == torch.float64
    assert same(data.x, [[1, 0, 1.5], [NAN, NAN, 2], [0, 1, 3], [1, 0, 4]])


def test_none_is_a_word_and_so_is_minus_beside_plus():
    assert read(rows(["none", "mild", "none", "mild"])).schema.columns[0].values == ("mild", "none")
    assert read(rows(["+", "-", "+", "-"])).schema.columns[0].values == ("+", "-")
    assert same(column(["none", "none", "none", "3"])[1], [NAN, NAN, NAN, 3])


def test_missing_cells_are_counted_by_column_and_client():
    table = rows([1.5, NAN, 3, NAN, 1, 2], ["u", "v", "", "", "u", "v"], [1, 2, 2, 1, 1, 2])
    found = read(table)
    assert found.notes[-1] == "4 cells are missing: a 2, b 2; most in client 's' (2 of 3 rows)."
    assert read(rows([1, NAN, 3, 3])).notes == ["1 cell is missing: a 1; most in client 's' (1 of 2 rows)."]
    assert table_dataset({k: v for k, v in table.items() if k != "c"}, "y").notes[-1].endswith("a 2, b 2.")
    with says("Of the table 4 cells are missing: a 2, b 2; the first in row 2", "`missing` to impute or drop"):
        read(table, missing="refuse")
    many = {f"f{k}": [1.5, NAN, 2, k] for k in range(7)}
    assert "f4 1 and 2 more" in read({"c": [1, 1, 2, 2], "y": [0, 1, 0, 1]} | many).notes[-1]


def test_rows_with_missing_cells_are_left_out():
    table = rows([1.5, NAN, 3, 4, 5.5, 1, 7], ["u", "v", "u", "u", "", "u", "w"])
    table["y"] = [0, 1, 0, 1, 2, None, 1]
    table["c"][6] = None
    data = read(table, missing="drop", categorical=["b"])
    assert data.x.tolist() == [[1.5, 1], [3, 1], [4, 1]] and data.y.tolist() == [0, 0, 1]
    assert data.label_names == ["0", "1"] and data.schema.columns[1].values == ("u",)  # of the rows that are left
    assert data.columns["c"].tolist() == ["n", "n", "s"]
    assert data.notes[0] == "4 of 7 rows have a missing cell and are left out."
    with says("'y' of the table is empty in row 6", "--missing drop"):
        read(table)
    with says("'c' of the table is empty in row 7"):
        read(table | {"y": [0, 1, 0, 1, 0, 1, 1]}, missing="refuse")
    with says("Every row of the table has a missing cell"):
        read(rows([1, NAN, 2, NAN], [NAN, 1, NAN, 1]), missing="drop")
    with says("missing must be 'impute', 'drop' or 'refuse'; got 'mean'"):
        read(table, missing="mean")


def test_a_column_without_any_cell():
    for empty in (["", "NA", "", ""], [NAN] * 4, [None] * 4, np.array(["NaT"] * 4, "datetime64[D]")):
        with says("'a' .empty in every row. of the table cannot be learned from: leave it out with --drop a"):
            read(rows(empty, [1, 2, 3, 4]))


# ---- kinds of columns


@pytest.mark.parametrize(
    ("values", "kind", "x"),
    [
        (["True", "False", "", "TRUE"], "flag", [1, 0, NAN, 1]),
        (["yes", "No", "no", "yes"], "flag", [1, 0, 0, 1]),
        (["y", "n", "n", "N"], "flag", [1, 0, 0, 0]),
        (["t", "f", "f", "t"], "flag", [1, 0, 0, 1]),
        ([True, False, True, True], "flag", [1, 0, 1, 1]),
        ([True, None, True, False], "flag", [1, NAN, 1, 0]),
        (["0", "1", "1", "0"], "number", [0, 1, 1, 0]),
        (["3,5", "1,234", "-2", "1e1"], "number", [3.5, 1.234, -2, 10]),
        (["0,123", "0,456", "?", "0,5"], "number", [0.123, 0.456, NAN, 0.5]),
        (["1970-01-02", "1969-12-31", "", "2024-02-29"], "date", [1, -1, NAN, 19782]),
        (["1970-01-01 12:00", "1970-01-02T06:00:00Z", "1970-01-01T00:00:00+06:00"], "date", [0.5, 1.25, -0.25]),
        (["01.02.1970", "2.1.1970", "31.12.1969", "1.1.1970 06:00"], "date", [31, 1, -1, 0.25]),
        (["01/02/1970", "01/13/1970", "1/1/1970", ""], "date", [1, 12, 0, NAN]),
        (["01/02/1970", "13/01/1970", "1/1/1970", ""], "date", [31, 12, 0, NAN]),
        ([dt.date(1970, 1, 3), None, dt.date(1970, 1, 1), dt.date(1970, 1, 2)], "date", [2, NAN, 0, 1]),
        ([dt.datetime(1970, 1, 2, 12, tzinfo=dt.UTC)] * 3 + [None], "date", [1.5, 1.5, 1.5, NAN]),
    ],
)  # fmt: skip
def test_kinds(values, kind, x):
    found, got = column(values)
    assert found == kind and same(got, x)


@pytest.mark.parametrize(
    ("values", "pieces"),
    [
        (["1,234", "2,345", "7", "8"], ("is a number but has '1,234' in row 1", "between thousands")),
        (["1,234.5", "2", "7", "8"], ("'1,234.5' in row 1", "between thousands")),
        (["1.234,5", "3,5", "7", "8"], ("'1.234,5' in row 1", "between thousands")),
        (["1 234", "2", "7", "8"], ("'1 234' in row 1", "between thousands")),
        (["3,5", "3.5", "7", "8"], ("'3,5' in row 1", "mend or empty the cell")),
        (["3,5", "4,5", "old", "8"], ("'old' in row 3",)),
        (["1", "2", "3", "3+"], ("is a number but has '3.' in row 4", "`categorical`", "--drop")),
        (["2024-01-01", "2024-02-31", "2024-01-01", ""], ("is a date but has '2024-02-31' in row 2",)),
        (["01/02/1970", "03/04/1970", "1/1/1970", ""], ("dates such as 01/02/1970", "2024-12-31", "--drop a")),
        (["13/02/1970", "03/14/1970", "1/1/1970", ""], ("dates such as 13/02/1970", "cannot be told apart")),
        (["ann", "bob", "cid", "dan"], ("text, 4 different values in 4 rows", "--drop a")),
    ],
)
def test_columns_that_cannot_be_read(values, pieces):
    with says("'a'", *pieces):
        read(rows(values))


def test_words_are_categories_where_they_are_few():
    data = read(rows(["u", "v"] * 4, ["10", "9", "10"] + ["x"] * 5))
    assert data.schema.features == ["a=u", "a=v", "b=10", "b=9", "b=x"]
    assert data.notes == ["Columns of words are taken as categories: a (2 values), b (3 values)."]
    assert read(rows(["u", "v"] * 4), categorical=["a"]).notes == []
    assert read(rows([10, 9] * 4), categorical=["a"]).schema.features == ["a=9", "a=10"]
    for few, good in ((20, True), (21, False)):
        table = rows([f"w{k % few}" for k in range(63)])
        if good:
            assert len(read(table).schema.features) == 20
        else:
            with says("text, 21 different values in 63 rows"):
                read(table)


@given(st.floats(-1e30, 1e30), st.booleans())
def test_a_number_is_read_as_python_writes_it(value, comma):
    text = repr(value).replace(".", "," if comma else ".")
    assert number(text, comma) == value


@given(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2300, 1, 1)))
def test_a_date_is_read_as_anybody_writes_it(time):
    whole = (time.date() - dt.date(1970, 1, 1)).days
    assert day(time.date().isoformat()) == day(time.strftime("%d.%m.%Y")) == whole
    assert day(time.strftime("%m/%d/%Y"), "M/D/Y") == day(time.strftime("%d/%m/%Y"), "D/M/Y") == whole
    assert day(time.isoformat()) == pytest.approx((time - dt.datetime(1970, 1, 1)).total_seconds() / 86400)


def test_cells_that_are_nothing():
    assert number("1_0") is number("inf") is number("1e39") is number("٣") is number("0x1") is number("") is None
    assert day("2024-13-01") is day("20240101") is day("1.1.24") is day("99.99.2024") is None
    assert flag("Yes") == flag("1") == 1 and flag("0.0") == flag("F") == 0 and flag("maybe") is None


@given(st.lists(st.sampled_from(["", " a", "a", "b ", "NA", "None", "-", "10", "9"]), min_size=1), st.data())
def test_words(texts, data):
    words = Words.of(texts)
    plain = ["" if t.strip() in ("", "NA", "None", "-") else t.strip() for t in texts]
    assert [words.values[k] for k in words.codes] == plain and len(set(words.values)) == len(words.values)
    assert words.missing.tolist() == [not t for t in plain] and set(words.filled) == set(plain) - {""}
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    part = words[chosen]
    assert [part.values[k] for k in part.codes] == [t for t, c in zip(plain, chosen, strict=True) if c]
    assert set(part.values) == {t for t, c in zip(plain, chosen, strict=True) if c}
    assert all(plain.index(value) == words.row(value) for value in words.values)
    assert ordered(["10", "9"]) == ["9", "10"] and ordered(["10", "9", "a"]) == ["10", "9", "a"]


# ---- remarks


def test_numbers_of_rows_are_told():
    def told(values, **options):
        return read(rows(values), **options).notes

    own = ["a looks like a row's own number: leave it out with --drop a."]
    assert told(list(range(10))) == told([1000 - 7 * k for k in range(10)]) == own
    assert told([f"p{k}" for k in range(12)], categorical=["a"]) == own
    assert told(list(range(9))) == told([k / 2 for k in range(12)]) == told([*range(11), 3]) == []
    assert "1 cell is missing" in told([*range(11), NAN])[0]
    many = told([f"w{k % 101}" for k in range(404)], categorical=["a"])
    assert many == ["a has 101 categories, a feature each: is it more than a code?"]
    assert told([f"w{k % 100}" for k in range(400)], categorical=["a"]) == []


def test_columns_that_never_change_are_told():
    table = rows([1, 1, 1, 1], ["u"] * 4, ["yes", "no", "yes", "no"], [2, 2, NAN, 2])
    assert read(table, categorical=["b"]).notes[1:] == ["Columns have one value in all rows: a, b."]
    assert read(rows([1, 1, 1, 1])).notes == ["One column has one value in all rows: a."]
    assert len(read(rows(["u", "", "u", "u"]), categorical=["a"]).notes) == 1  # a missing cell tells something


def test_notes_reach_the_federation_and_its_copies(tmp_path):
    table = rows(["u", "v", "", "v"], [1, 1, 1, 1])
    notes = read(table).notes
    assert len(notes) == 3
    with pytest.warns(UserWarning) as told:
        fed = from_table(table, "c", "y")
    assert [str(w.message) for w in told][:3] == fed.notes == notes and remarks(fed)[:3] == notes
    again = Federation.open_mapped(fed.replace(names=["1", "2"]).mapped(tmp_path / "m") and tmp_path / "m")
    assert again.notes == notes and again.schema == fed.schema


# ---- a label


def labelled(y, **options):
    return table_dataset({"y": y, "x": [k / 2 for k in range(len(y))]}, "y", **options)


def test_a_whole_number_label_with_many_values_is_asked_about():
    progression = [25 + k % 214 for k in range(442)]
    with says("'y' of", "214 different whole numbers in 442 rows: say --regression", "--no-regression"):
        labelled(progression)
    assert labelled(progression, regression=True).classes is None
    assert labelled(progression, regression=False).classes == 214
    assert labelled([k % 26 for k in range(520)]).classes == 26  # letters
    with says("26 different whole numbers in 519 rows"):
        labelled([k % 26 for k in range(519)])
    assert labelled([k % 20 for k in range(40)]).classes == 20
    with says("21 different whole numbers"):
        labelled([k % 21 for k in range(42)])
    assert labelled([f"w{k % 21}" for k in range(42)]).classes == 21  # words are classes


def test_fractions_are_numbers_to_predict():
    data = labelled([0.5, 1, 1, 2])
    assert data.classes is None and data.y.dtype == torch.float64 and data.y.tolist() == [0.5, 1, 1, 2]
    assert data.notes == ["The label 'y' has fractions such as 0.5: it is taken as a number to predict."]
    assert labelled(["3,5", "2,5", "3,5", "1"], regression=True).y.tolist() == [3.5, 2.5, 3.5, 1]
    assert labelled([0.5, 1, 1, 2], regression=False).label_names == ["0.5", "1.0", "2.0"]
    assert labelled(["0.5", "low", "low", "high"]).classes == 3


# ---- rows of another table


def test_words_that_only_the_test_table_has():
    table = rows(["u", "v", "u", "v"], [1, 2, 3, 4.5])
    second = {"b": [7, NAN], "a": ["w", "v"], "y": [1, 0], "more": ["x", "y"]}
    data = read(table, test=second, categorical=["a"])
    assert same(data.test[0], [[0, 0, 7], [0, 1, NAN]]) and data.test[1].tolist() == [1, 0]
    assert data.notes == ["the table has words that the training table never has, taken as none: a 1."]
    with says("'a' of the table has 'w' in row 1, which the training table never has"):
        read(table, test=second, unseen="refuse")
    with says("'y' of the table has '2' in row 2"):
        read(table, test=second | {"y": [1, 2]})
    with says("unseen must be 'ignore' or 'refuse'"):
        read(table, unseen="zero")
    data = read(table, test=second, categorical=["a"], missing="drop")
    assert data.test[0].tolist() == [[0, 0, 7]] and "1 of 2 rows of the table have a missing cell" in data.notes[-1]
    with says("'y' of the table is empty in row 1"):
        read(table, test=second | {"y": [None, 1]})


SCHEMA = Schema(
    (
        Column("age"),
        Column("sex", "category", ("f", "m")),
        Column("smoker", "flag"),
        Column("seen", "date", ("D/M/Y",)),
    ),
    "ill",
    ("no", "yes"),
)
X = [[61, 0, 1, 1, 31], [NAN, 0, 0, NAN, NAN]]


def test_rows_by_a_schema(tmp_path):
    people = [
        {"seen": "01/02/1970", "sex": "m", "age": "61", "smoker": "yes", "ill": "yes"},
        {"sex": "x", "smoker": None, "ill": "no", "name": "Ann"},
    ]
    x, y = encoded(SCHEMA, people)
    assert same(x, X) and x.dtype == np.float64 and y.tolist() == [1, 0] and y.dtype == np.int64
    (tmp_path / "a.csv").write_text("smoker;sex;seen;age\n1;m;1970-02-01;61,0\n;x;;NA\n")
    x, y = encoded(SCHEMA, tmp_path / "a.csv")
    assert same(x, X) and y is None
    frame = {"age": [61, NAN], "sex": ["m", "x"], "smoker": [True, None]} | {
        "seen": np.array(["1970-02-01", "NaT"], "datetime64[s]"), "ill": ["perhaps", "no"],
    }  # fmt: skip
    assert same(encoded(SCHEMA, frame, label=False)[0], X)
    with says("'ill' of the table has 'perhaps' in row 1"):
        encoded(SCHEMA, frame)
    with says("'sex' of the table has 'x' in row 2"):
        encoded(SCHEMA, frame, label=False, unseen="refuse")
    with says("the table has no column 'age'"):
        encoded(SCHEMA, [{"sex": "m"}])
    with says("'smoker' of the table is yes or no but has '2.0' in row 1"):
        encoded(SCHEMA, [people[0] | {"smoker": 2}])
    with says("'seen' of the table is a date but has '5.0' in row 1"):
        encoded(SCHEMA, [people[0] | {"seen": 5}])


def test_a_table_by_its_own_schema_is_the_same():
    table = rows(["u", "", "v", "u"], ["1,5", "2", "NA", "3"], ["13/01/2024", "", "1/2/2024", "2/1/2024"])
    data = read(table)
    x, y = encoded(Schema.from_plain(data.schema.plain()), table)
    assert same(x, data.x) and y.tolist() == data.y.tolist()


def test_a_table_with_a_number_to_predict_by_its_schema():
    schema = Schema((Column("a"),), "y")
    assert encoded(schema, {"a": [1, 2], "y": ["0,5", "2"]})[1].tolist() == [0.5, 2]


# ---- files


def test_arrow_and_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    noon = pa.array([dt.datetime(1970, 1, 1, 12), None, None, None], pa.timestamp("ns", "UTC"))
    table = pa.table(
        {
            "c": ["n", "n", "s", "s"],
            "y": [0, 1, 0, 1],
            "whole": pa.array([1, None, 3, 4], pa.int32()),
            "flag": pa.array([True, None, False, True]),
            "date": pa.array([dt.date(1970, 1, 3), None, None, None]),
            "noon": noon,
            "word": pa.array(["u", None, "v", "u"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    for source in (table, tmp_path / "a.parquet"):
        data = read(source)
        assert [c.kind for c in data.schema.columns] == ["number", "flag", "date", "date", "category"]
        assert same(data.x[:2], [[1, 1, 2, 0.5, 1, 0], [NAN] * 6]) and same(data.x[2:, 4:], [[0, 1], [1, 0]])


def test_a_file_with_gaps_is_read_as_one_without(tmp_path):
    """Gaps in the first rows, behind them, and in all ways of writing; the quick readers and the exact one."""
    lines = [f"{'ns'[k % 2]},{k % 2},{k}.5,{k}.25,{'' if k == 3 else k % 7}" for k in range(300)]
    lines[250] = lines[250].replace("250.5", "NA")
    (tmp_path / "a.csv").write_text("\n".join(["c,y,a,b,d", *lines]))
    x = read(tmp_path / "a.csv").x.numpy()
    assert x.shape == (300, 3) and np.isnan(x).sum() == 2 and x[249, 0] == 249.5 and x[299, 1] == 299.25
    lines[251] = lines[251].replace("251.5", " n/a ")  # float() does not know it
    (tmp_path / "a.csv").write_text("\n".join(["c,y,a,b,d", *lines]))
    again = read(tmp_path / "a.csv").x.numpy()
    assert np.isnan(again[251, 0]) and same(np.delete(again, 251, 0), np.delete(x, 251, 0))


def test_no_warning_for_a_clean_table():
    days = ["2024-01-01", "2024-01-02", "2024-01-05", "2024-01-03"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_table(rows([1.5, 2, 3, 4], [True, False, False, True], days), "c", "y")


def test_all_columns_that_cannot_be_learned_from_are_named_at_once():
    names = [f"word {k}" for k in range(40)]
    with says("'who knows' .text, 40 .*'b' .empty in every row.", "leave them out with --drop 'who knows,b'"):
        from_table(
            {"c": ["x", "y"] * 20, "y": ["u", "u", "v", "v"] * 10, "who knows": names, "b": [None] * 40}, "c", "y"
        )


def test_a_client_that_loses_all_its_rows_is_named():
    table = {"c": ["x", "y"] * 6, "y": ["u", "u", "v", "v"] * 3, "a": [1.0, None] * 6}
    data = table_dataset(table, "y", client="c", missing="drop")
    assert "Clients without a row that is left: y." in data.notes


@pytest.mark.parametrize("values, told", [([0, 1, 2], False), ([1, 2, 3, 4, 5], True)])
def test_whole_numbers_that_are_taken_as_classes_are_said(values, told):
    labels = (values * 20)[:60]
    data = table_dataset({"y": labels, "a": [k / 7 for k in range(60)]}, "y")
    assert any("taken as classes" in note for note in data.notes) == told
