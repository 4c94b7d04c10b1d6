"""Open files that others packed, safely: pickles that can only hold arrays, archives that stay within their folder and
below a size."""

from __future__ import annotations

import bz2
import collections
import contextlib
import gzip
import io
import lzma
import math
import os
import pickle
import re
import shutil
import stat
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np

from unalike.errors import UnalikeError, first_line

CHUNK = 1 << 20
HEADER_LIMIT = 16 << 20  # no real tar header comes near this size
MAGIC: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


@contextlib.contextmanager
def reading(path: str | os.PathLike, kind: str) -> Iterator[None]:
    """Turn any failure to read a file in this block into one line that names the file."""
    try:
        yield
    except UnalikeError:
        raise
    except FileNotFoundError as error:
        raise UnalikeError(f"{error.filename or path} does not exist: give the path of the {kind}.") from None
    # each format raises its own errors for a bad file
    except Exception as error:
        reason = first_line(error)[:160]
        raise UnalikeError(f"{path} is not a whole {kind} ({reason}): get another copy of it.") from None


def opened(path: str | os.PathLike) -> IO[bytes]:
    """Open a file; if it begins like gzip, bzip2 or xz, it is unpacked while it is read."""
    with open(path, "rb") as file:
        start = file.read(8)
    opener: Callable[..., Any] = next((fn for magic, fn in MAGIC.items() if start.startswith(magic)), open)
    return cast("IO[bytes]", opener(path, "rb"))


# ---- pickles


class _Dtype:
    """Stands in for numpy.dtype while unpickling: only simple types, and numpy's own code never reads untrusted
    state."""

    def __init__(self, code: Any, *_: Any):
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not re.fullmatch(r"[<>|=]?[?biufSUO]\d{0,9}", code):
            raise pickle.UnpicklingError(f"an array of type {str(code)[:40]!r}")
        self.dtype: np.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("an array of records")
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(cast("Any", order))


class _Array:
    """Stands in for numpy.ndarray until everything is read; sizes are checked before any memory is taken."""

    def __init__(self, *_: Any):
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> None:
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise pickle.UnpicklingError("an array of impossible shape")
        if dtype.dtype.hasobject:
            if not isinstance(data, list) or len(data) != math.prod(shape):
                raise pickle.UnpicklingError("an array whose size is not that of its data")
            flat = np.empty(len(data), object)
            flat[:] = data
        else:
            data = data.encode("latin1") if isinstance(data, str) else data
            if len(data) != math.prod(shape) * dtype.dtype.itemsize:
                raise pickle.UnpicklingError("an array whose size is not that of its data")
            flat = np.frombuffer(data, dtype.dtype) if len(data) else np.empty(0, dtype.dtype)
        self.value = flat.reshape(shape, order=order)  # type: ignore[call-overload]


def _frombuffer(data: Any, dtype: _Dtype, shape: Any, order: str) -> _Array:
    array = _Array()
    array.fill(bytes(data), dtype, tuple(shape), order)
    return array


def _scalar(dtype: _Dtype, data: Any) -> Any:
    array = _Array()
    array.fill(data, dtype, (1,), "C")
    return cast("np.ndarray", array.value)[0]


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes from the form in which Python 3 writes them in the old pickle protocols."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text to be encoded as {encoding!r}")
    return text.encode("latin1")


def _empty() -> bytes:
    """Return b"", which Python 3 writes as a call in the old pickle protocols; `bytes` itself would accept a size."""
    return b""


NUMPY = {"_reconstruct": _Array, "scalar": _scalar}
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{(f"numpy.{core}.multiarray", name): thing for core in ("core", "_core") for name, thing in NUMPY.items()},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
    **{(module, t.__name__): t for module in ("builtins", "__builtin__") for t in (set, frozenset, slice)},
    **{(module, "bytes"): _empty for module in ("builtins", "__builtin__")},
}


class Shell:
    """An inert object that only keeps the state it was pickled with, for `restricted_load(stand_ins=…)`."""

    state: Any = None

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


# The unpickler written in Python: the one in C can be made to take gigabytes by a pickle of a few bytes.
_InPython: Any = vars(pickle)["_Unpickler"]


class _Unpickler(_InPython):
    dispatch = dict(_InPython.dispatch)

    def __init__(self, file: IO[bytes], encoding: str, allowed: Mapping[tuple[str, str], Any]):
        super().__init__(file, encoding=encoding)
        self.allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            # escapes line ends and control characters of a hostile name
            raise UnalikeError(repr(f"{module}.{name}"[:80])[1:-1])
        return self.allowed[module, name]

    def load_build(self) -> None:
        """Set state only on our own stand-ins: otherwise a pickle could set attributes of the functions it may call."""
        if not isinstance(self.stack[-2], (_Array, _Dtype, Shell)):
            raise pickle.UnpicklingError("state for something that has none")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def restricted_load(
    source: str | os.PathLike | IO[bytes],
    encoding: str = "bytes",
    stand_ins: Mapping[tuple[str, str], Any] | None = None,
) -> Any:
    """Read a pickle of plain containers and numpy arrays; refuse anything else that it names before anything runs.

    Nothing of the pickle's choosing is ever called: arrays are rebuilt by our own code with their sizes checked.
    `encoding` is for the strings of Python 2 (CIFAR's keys are then bytes). `stand_ins` maps (module, name) to inert
    things such as a `Shell`, for a file that holds more. A file may be gzipped. The arrays are read-only.
    """
    name = getattr(source, "name", "the pickle") if hasattr(source, "read") else source
    with reading(name, "pickle of arrays"), contextlib.ExitStack() as stack:
        file = source if hasattr(source, "read") else stack.enter_context(opened(cast("str", source)))
        try:
            tree = _Unpickler(cast("IO[bytes]", file), encoding, ALLOWED | dict(stand_ins or {})).load()
        except UnalikeError as refused:
            raise UnalikeError(
                f"{name} holds {refused}, which is neither an array nor a plain container: it was refused and "
                "nothing of it was run; get the file from the data's owner."
            ) from None
        return _plain(tree, {})


def _plain(value: Any, seen: dict[int, tuple[Any, Any]]) -> Any:
    """Return the tree with stand-ins replaced by arrays. `seen` keeps shared and circular parts from being walked
    twice."""
    if id(value) in seen:
        return seen[id(value)][1]
    if isinstance(value, _Dtype):
        return value.dtype
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without data")
        seen[id(value)] = (value, value.value)
        if value.value.dtype.hasobject:
            value.value.reshape(-1)[:] = [_plain(item, seen) for item in value.value.reshape(-1)]
        return value.value
    if isinstance(value, tuple):
        new = tuple(_plain(item, seen) for item in value)
        seen[id(value)] = (value, new)
        return new
    if isinstance(value, (Shell, list, dict)):
        seen[id(value)] = (value, value)
    if isinstance(value, Shell):
        value.state = _plain(value.state, seen)
    elif isinstance(value, list):
        value[:] = [_plain(item, seen) for item in value]
    elif isinstance(value, dict):
        value |= {key: _plain(item, seen) for key, item in value.items()}
    return value


# ---- archives


class _Bounded(io.RawIOBase):
    """A tar's byte stream for tarfile, with a limit on a single read: a header may claim any size."""

    def __init__(self, file: IO[bytes]):
        self.file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= HEADER_LIMIT:
            raise tarfile.ReadError("a header that is far too large")
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def seekable(self) -> bool:
        return True


@contextlib.contextmanager
def open_tar(path: str | os.PathLike) -> Iterator[tarfile.TarFile]:
    """Open a tar, also gzip, bzip2 or xz, to be read member by member."""
    with opened(path) as raw, tarfile.open(fileobj=cast("IO[bytes]", _Bounded(raw)), mode="r:") as tar:
        yield tar


def safe_extract(
    archive: str | os.PathLike, folder: str | os.PathLike, limit_bytes: int = 8 << 30, limit_files: int = 500_000
) -> list[Path]:
    """Unpack a tar (also gzip, bzip2, xz) or zip into a new folder; return its files.

    Absolute paths, '..', links of any kind and devices are refused, and so is more than `limit_bytes` or `limit_files`,
    counted while writing, whatever the archive says about itself. The folder appears only when it is complete. Modes,
    owners and times are not kept.
    """
    archive, target = Path(archive), Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnalikeError(f"{target} exists already and is not empty: give a new folder to unpack into.")
    scratch = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with reading(archive, "tar or zip archive"):
            scratch.mkdir(parents=True)
            written, left = [], limit_bytes
            for count, (name, stream) in enumerate(_members(archive)):
                if count >= limit_files:
                    raise UnalikeError(f"{archive} holds over {limit_files} files: raise limit_files if you trust it.")
                place = scratch / _inside(archive, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                if stream is None:
                    place.mkdir(exist_ok=True)
                    continue
                with stream, open(place, "xb") as file:
                    while chunk := stream.read(CHUNK):
                        left -= len(chunk)
                        if left < 0:
                            raise UnalikeError(
                                f"{archive} unpacks to over {limit_bytes} bytes: raise limit_bytes if you trust it."
                            )
                        file.write(chunk)
                written.append(place.relative_to(scratch))
            if target.exists():
                target.rmdir()  # empty: checked above
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [target / name for name in written]


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the name and stream of every file; the stream is None for a folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _refused(archive, info.filename, "a link or a device")
                yield info.filename, None if info.is_dir() else packed.open(info)
        return
    with open_tar(archive) as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()):
                raise _refused(archive, member.name, "a link or a device")
            yield member.name, tar.extractfile(member) if member.isreg() else None


def _inside(archive: Path, name: str) -> PurePosixPath:
    """Return a member's path; refuse one that leads out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name):
        raise _refused(archive, name, "a path that leaves the folder")
    return path


def _refused(archive: Path, name: str, why: str) -> UnalikeError:
    return UnalikeError(f"{archive} holds {name[:80]!r}, {why}: it was refused; get the archive from the data's owner.")
