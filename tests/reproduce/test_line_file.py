"""Lines of JSON that several processes append: whole, torn, and two of one run."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from unalike.errors import UnalikeError
from unalike.reproduce.line_file import LineFile, append
from unalike.reproduce.results import Results


def lines_of(path):
    return [line["key"] for line in LineFile(path).more()]


def test_lines_are_appended_and_read_once(tmp_path):
    path = tmp_path / "deep" / "t.jsonl"
    append(path, {"key": "a", "curve": [0.1, 0.2]})
    reader = LineFile(path)
    assert reader.more() == [{"key": "a", "curve": [0.1, 0.2]}] and reader.more() == []
    append(path, {"key": "b"})
    assert reader.more() == [{"key": "b"}]
    assert path.read_text() == '{"key":"a","curve":[0.1,0.2]}\n{"key":"b"}\n'


def test_a_torn_line_is_left_out_noticed_and_written_over(tmp_path):
    path = tmp_path / "t.jsonl"
    append(path, {"key": "a"})
    whole = path.read_bytes()
    for torn in (b'{"key":"b","curve":[0.1', b"{", b'{"key":"b"', b"\xc3"):
        path.write_bytes(whole + torn)
        there = Results(tmp_path)
        assert [*there.found] == ["a"] and there.torn == [path]
        there.add("t", {"key": "c"})
        there.look()
        assert [*there.found] == ["a", "c"] and there.torn == [] and lines_of(path) == ["a", "c"]


def test_a_last_line_without_its_newline_counts(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"key":"a"}\n{"key":"b"}')
    reader = LineFile(path)
    assert [line["key"] for line in reader.more()] == ["a", "b"] and not reader.torn
    append(path, {"key": "c"})
    assert lines_of(path) == ["a", "b", "c"] and reader.more()[-1] == {"key": "c"}


@pytest.mark.parametrize("bad", ["no json", "[1]", '{"no": "key"}'])
def test_a_bad_line_within_the_file_is_an_error_of_one_line(bad, tmp_path):
    (tmp_path / "t.jsonl").write_text(f'{{"key":"a"}}\n{bad}\n{{"key":"b"}}\n')
    with pytest.raises(UnalikeError, match=r"t\.jsonl has a line that is no result") as error:
        Results(tmp_path)
    assert "\n" not in str(error.value)


def test_a_file_that_was_replaced_is_read_anew(tmp_path):
    path = tmp_path / "t.jsonl"
    append(path, {"key": "a"})
    append(path, {"key": "b"})
    reader = LineFile(path)
    assert len(reader.more()) == 2
    path.write_text('{"key":"c"}\n')
    assert reader.more() == [{"key": "c"}]


def test_of_two_lines_the_run_that_was_alone_counts(tmp_path):
    for file, beside, mark in (("b", 1, 1), ("a", 0, 2), ("b", 2, 3)):
        Results(tmp_path).add(file, {"key": "k", "beside": beside, "mark": mark})
    assert Results(tmp_path).found["k"]["mark"] == 2  # though b is read after a
    Results(tmp_path).add("c", {"key": "k", "beside": 0, "mark": 4})
    assert Results(tmp_path).found["k"]["mark"] == 4


def test_lines_that_are_appended_at_once_are_all_there(tmp_path):
    """A lock is an open file's, so threads stand for processes."""
    path, names = tmp_path / "t.jsonl", [f"{k:02}" for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(lambda name: append(path, {"key": name, "curve": [0] * 20_000}), names)]
    found = LineFile(path).more()
    assert sorted(line["key"] for line in found) == names and all(len(line["curve"]) == 20_000 for line in found)
