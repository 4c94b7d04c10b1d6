"""Pickles and archives from strangers: nothing runs, nothing leaves its folder, nothing explodes."""

import builtins
import collections
import contextlib
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unalike.data.safety import Shell, restricted_load, safe_extract
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


# ---- pickles

ARRAYS = [
    np.arange(6, dtype=np.uint8).reshape(2, 3),
    np.arange(6.0).reshape(2, 3).T,
    np.arange(8)[::2],
    np.array(["a", "bc"]),
    np.array([b"a", b"bc"]),
    np.arange(3, dtype=">i4"),
    np.array(["x", None, 3], object),
    np.zeros((0, 3)),
    np.array([True, False]),
    np.float32(3.5),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_arrays_and_containers_come_back(array, protocol):
    tree = {"twice": [array, array], "more": (array, {1, 2}, collections.OrderedDict(a=1), b"", "é", None)}
    back = restricted_load(io.BytesIO(pickle.dumps(tree, protocol)), encoding="latin1")
    for one in (*back["twice"], back["more"][0]):
        assert np.array_equal(one, array) and one.dtype == array.dtype
    assert back["twice"][0] is back["twice"][1]
    assert back["more"][1:] == ({1, 2}, {"a": 1}, b"", "é", None)


class Calls:
    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


def attacks(marker):
    import numpy.f2py
    import numpy.testing

    command = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w')"
    yield pickle.dumps(Calls(os.system, command))
    yield pickle.dumps(Calls(builtins.eval, python))
    yield pickle.dumps(Calls(builtins.exec, python))
    yield b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR."
    yield b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'__subclasses__'\ntR."
    yield f"cos\nsystem\n(S'{command}'\ntR.".encode()
    yield f"(S'{command}'\nios\nsystem\n.".encode()  # INST
    yield f"(cos\nsystem\nS'{command}'\no.".encode()  # OBJ
    yield f'c__builtin__\neval\n(S"{python}"\ntR.'.encode()
    yield pickle.dumps(Calls(numpy.testing.measure, python))
    yield pickle.dumps(Calls(numpy.f2py.run_main, "x"))
    yield pickle.dumps(Calls(np.load, str(marker), None, True))
    yield pickle.dumps(Calls(np.memmap, str(marker), "u1", "w+", 0, (1,)))
    yield pickle.dumps(Calls(open, str(marker), "w"))
    yield pickle.dumps({"data": [np.arange(3), Calls(os.system, command)]})
    yield pickle.dumps(np.array([Calls(os.system, command)], object))  # inside an array of objects
    yield pickle.dumps(Calls(__import__, "subprocess"))
    yield b"cnumpy\n_core.multiarray.add\n(I1\nI2\ntR."  # a dotted name
    yield b"\x80\x04\x8c\x05numpy\x8c\x12ndarray.__reduce__\x93)R."


def test_nothing_of_a_hostile_pickle_runs(tmp_path):
    marker = tmp_path / "ran"
    hostile = list(attacks(marker))
    assert len(hostile) > 15
    for data in hostile:
        with says("the pickle"):
            restricted_load(io.BytesIO(data))
        assert not marker.exists()


def test_the_refusal_names_file_and_function(tmp_path):
    file = tmp_path / "data_batch_1"
    file.write_bytes(pickle.dumps(Calls(os.system, "true")))
    with says("data_batch_1 holds posix.system", "nothing of it was run"):
        restricted_load(file)


def test_a_pickle_cannot_change_what_it_may_call():
    """BUILD sets attributes: of an allowed function or class it would outlive the file."""
    for name in (b"c_codecs\nencode\n", b"ccollections\nOrderedDict\n", b"cnumpy\nndarray\n"):
        with says("state for something that has none"):
            restricted_load(io.BytesIO(name + b"(dS'x'\nI1\nsb."))


def array_pickle(shape, data, code="u1"):
    """An array's pickle with whatever shape and bytes."""
    state = pickle.dumps((1, shape, np.dtype(code), False, data), 2)[2:-1]
    return b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R" + state + b"b."


@pytest.mark.parametrize(
    ("shape", "data"),
    [((3,), b"ab"), ((2,), b"abc"), ((10**12, 10**12), b""), ((-1,), b"a"), (("3",), b"abc"), ((2**63, 2), b"")],
)
def test_an_array_of_another_size_than_its_data(shape, data):
    with says("is not a whole pickle of arrays"):
        restricted_load(io.BytesIO(array_pickle(shape, data)))
    assert restricted_load(io.BytesIO(array_pickle((3,), b"abc"))).tolist() == [97, 98, 99]


def test_small_pickles_that_ask_for_gigabytes():
    huge = [
        b"r\xff\xff\xff\x7f.",  # a memo slot far away
        b"\x80\x04N\x94" + b"r" + struct.pack("<I", 2**31) + b".",
        b"\x8e" + struct.pack("<Q", 2**62) + b"abc.",  # bytes
        b"T" + struct.pack("<i", 2**31 - 1) + b"abc.",
        b"cbuiltins\nbytes\n(L100000000000L\ntR.",
        b"cbuiltins\nbytearray\n(L100000000000L\ntR.",
    ]
    tracemalloc.start()
    try:
        for data in huge:
            with contextlib.suppress(UnalikeError):
                restricted_load(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_a_tree_that_shares_itself_is_walked_once():
    laughs = [1]
    for _ in range(200):
        laughs = [laughs, laughs]
    back = restricted_load(io.BytesIO(pickle.dumps(laughs)))
    assert back[0] is back[1]
    pairs = (1,)
    for _ in range(12):
        pairs = (pairs, pairs)
    back = restricted_load(io.BytesIO(pickle.dumps(pairs)))
    assert back == pairs and back[0] is back[1]
    circle = []
    circle.append(circle)
    assert (back := restricted_load(io.BytesIO(pickle.dumps(circle))))[0] is back


def test_stand_ins_keep_the_state_and_nothing_more():
    data = pickle.dumps(Calls(collections.ChainMap))
    with says("collections.ChainMap"):
        restricted_load(io.BytesIO(data))
    assert isinstance(restricted_load(io.BytesIO(data), stand_ins={("collections", "ChainMap"): Shell}), Shell)


def test_a_refused_name_is_one_line():
    bad = pickle.dumps(np.arange(3), 4).replace(b"numpy", b"\numpy"[:1] + b"umpy", 1)
    with pytest.raises(UnalikeError, match="neither an array nor a plain container") as refused:
        restricted_load(io.BytesIO(bad))
    assert "\n" not in str(refused.value) and "\\numpy" in str(refused.value)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_garbage_pickles(data):
    good = pickle.dumps({"data": np.arange(20, dtype=np.uint8), "labels": [1, 2]}, data.draw(st.integers(0, 5)))
    place = data.draw(st.integers(0, len(good) - 1))
    change = data.draw(st.sampled_from(["cut", "byte", "noise"]))
    if change == "cut":
        bad = good[:place]
    elif change == "byte":
        bad = good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :]
    else:
        bad = data.draw(st.binary(max_size=60))
    try:
        restricted_load(io.BytesIO(bad), encoding="latin1")
    except UnalikeError as error:
        assert "\n" not in str(error)
    else:
        assert change != "cut"


# ---- archives


def tar(path, *members, mode="w:gz"):
    """Members are (name, bytes) or a TarInfo."""
    with tarfile.open(path, mode) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def zipped(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_of_any_kind(tmp_path, mode):
    folder = special("set", tarfile.DIRTYPE)
    archive = tar(tmp_path / "a.tar", folder, ("set/x.bin", b"abc"), ("./set/deep/y", b""), mode=mode)
    files = safe_extract(archive, tmp_path / "out")
    assert sorted(files) == [tmp_path / "out/set/deep/y", tmp_path / "out/set/x.bin"]
    assert (tmp_path / "out/set/x.bin").read_bytes() == b"abc"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "out"]


def test_a_zip(tmp_path):
    files = safe_extract(zipped(tmp_path / "a.zip", ("set/", b""), ("set/x", b"abc")), tmp_path / "out")
    assert [file.read_bytes() for file in files] == [b"abc"]


ESCAPES = ["../x", "/tmp/unalike-x", "a/../../x", "a\\..\\x", "C:x", "C:/x"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_paths_that_leave_the_folder(tmp_path, name, kind):
    members = (("good", b"1"), (name, b"2"))
    archive = tar(tmp_path / "a", *members) if kind == "tar" else zipped(tmp_path / "a", *members)
    with says("leaves the folder"):
        safe_extract(archive, tmp_path / "deep" / "out")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "deep"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "good"])
def test_links_and_devices(tmp_path, kind, target):
    archive = tar(tmp_path / "a", ("good", b"1"), special("link", kind, target), ("link/x", b"2"))
    with says("'link', a link or a device"):
        safe_extract(archive, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_link_in_a_zip(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with says("'link', a link or a device"):
        safe_extract(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [tar, zipped])
def test_archives_that_grow_too_large(tmp_path, make):
    bomb = make(tmp_path / "bomb", ("a", bytes(600_000)), ("b", bytes(600_000)))
    assert bomb.stat().st_size < 5_000
    with says("unpacks to over 1000000 bytes", "limit_bytes"):
        safe_extract(bomb, tmp_path / "out", limit_bytes=1_000_000)
    assert [p.name for p in tmp_path.iterdir()] == ["bomb"]
    assert len(safe_extract(bomb, tmp_path / "out", limit_bytes=1_200_000)) == 2
    many = make(tmp_path / "many", *((str(i), b"") for i in range(11)))
    with says("over 10 files", "limit_files"):
        safe_extract(many, tmp_path / "out2", limit_files=10)


def test_a_zip_that_lies_about_its_size(tmp_path):
    archive = zipped(tmp_path / "a.zip", ("x", bytes(100_000)))
    data = archive.read_bytes().replace(struct.pack("<I", 100_000), struct.pack("<I", 10))
    archive.write_bytes(data)
    with says("a.zip"):
        safe_extract(archive, tmp_path / "out", limit_bytes=1000)


def test_a_tar_header_of_gigabytes(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**32
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with says("header that is far too large"):
        safe_extract(tmp_path / "a.tar", tmp_path / "out")


def test_the_same_name_twice_and_a_full_folder(tmp_path):
    with says("is not a whole tar or zip archive"):
        safe_extract(tar(tmp_path / "a", ("x", b"1"), ("x", b"2")), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    with says("full exists already"):
        safe_extract(tar(tmp_path / "b", ("mine", b"1")), tmp_path / "full")
    assert (tmp_path / "full" / "mine").read_text() == "precious"


def test_what_is_no_archive(tmp_path):
    (tmp_path / "text").write_text("hello")
    for name in ("text", "missing"):
        with says(name):
            safe_extract(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_garbage_archives(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("garbage")
    make = data.draw(st.sampled_from([tar, zipped]))
    archive = make(folder / "a", ("x/y", b"abc" * 50), ("z", b"1"))
    good = archive.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        archive.write_bytes(good[:place])
    else:
        archive.write_bytes(good[:place] + data.draw(st.binary(min_size=1, max_size=4)) + good[place + 1 :])
    try:
        files = safe_extract(archive, folder / "out")
    except UnalikeError as error:
        assert "\n" not in str(error)
        assert [p.name for p in folder.iterdir()] == ["a"]
    else:
        assert all(folder / "out" in file.parents for file in files)
