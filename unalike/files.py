"""Write files and folders in one step (whole or not at all), hold locks that end with their process, and read only
plain files.

Writing never follows a link: a new file is always made under a free name and then renamed.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unalike.errors import UnalikeError

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


@contextmanager
def complaining(what: str) -> Iterator[None]:
    """Turn a failure to write in this block into an error of one line: `what` and the reason."""
    try:
        yield
    except OSError as error:
        raise UnalikeError(f"{what}: {error.strerror or error}.") from error


def replace(path: Path, data: bytes, sync: bool = True, mark: str = "new", mode: int = 0o666) -> None:
    """Write the file in one step: a reader sees the old content or the new. `sync` waits for the disk. mode: the file's
    permissions, as for `os.open`."""
    with replacing(path, mark) as new:
        write(new, data, sync, mode)


def write(path: Path, data: bytes, sync: bool = True, mode: int = 0o666) -> None:
    """Write a file that does not exist yet. `sync` waits for the disk."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replacing(path: Path, mark: str = "new") -> Iterator[Path]:
    """Give a free path beside `path`. The file or folder made there is renamed to `path` at the end of the block, or
    removed if the block fails. Processes that may write the same path at the same time need different marks."""
    new = path.with_name(f".{path.name}.{mark}")
    # left by a killed process, or a link put there by somebody else
    if os.path.lexists(new):
        _remove(new)
    try:
        yield new
        os.replace(new, path)
    except BaseException:
        _remove(new)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def open_plain(path: Path) -> io.BufferedReader:
    """Open a plain file for reading. Refuse a link, a pipe or a device of that name at once, without waiting for it."""
    try:
        handle = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise not_plain(path)
    return os.fdopen(handle, "rb")


def read_plain(path: Path) -> bytes:
    """Return the content of a plain file, as `open_plain` opens it."""
    with open_plain(path) as file:
        return file.read()


def check_plain(folder: Path) -> None:
    """Refuse a folder that contains, at any depth, a link, a pipe or a device: nothing in it may lead elsewhere."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                check_plain(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                raise not_plain(Path(entry.path))


def not_plain(path: Path) -> UnalikeError:
    """Return the error for a path that is not a plain file."""
    kind = KINDS.get(stat.S_IFMT(path.lstat().st_mode), "a device")
    return UnalikeError(f"{path} is {kind}, where only a plain file may be: see where it comes from, then remove it.")


def hold(path: Path, wait: bool = False) -> int | None:
    """Lock a file (created if need be) or a folder and return its handle; closing the handle releases the lock. Return
    None where there are no locks: on Windows, and on some file systems. Raise BlockingIOError if another process has
    the lock."""
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDONLY | os.O_CREAT | NO_FOLLOW, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return handle


def hold_alone(file: Path) -> int | None:
    """Hold the lock of a folder that one process may write to, and return its handle; another's is one line."""
    try:
        return hold(file)
    except BlockingIOError:
        raise UnalikeError(f"{file.parent} is in use by another process: one folder, one process.") from None


def release(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


class OtherProcesses:
    """Count the other processes of one kind on this machine, of any user. Each holds a lock on its own file in the
    folder for temporary files; processes with another temporary folder are not counted."""

    def __init__(self, kind: str):
        self._handle: int | None = None
        self._mine = Path(f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
        # without the folder, processes cannot see each other
        with suppress(OSError):
            self._folder = Path(tempfile.gettempdir()) / f"unalike-{kind}"
            with suppress(FileExistsError):
                self._folder.mkdir()
                self._folder.chmod(0o1777)  # for other users too
            new, self._mine = self._folder / f".{self._mine}", self._folder / self._mine
            # locked under a name that no process looks for, then renamed
            self._handle = hold(new)
            new.rename(self._mine)

    def others(self) -> int | None:
        """Return the number of other processes; None where it cannot be known."""
        if self._handle is None:
            return None
        found = 0
        for file in self._folder.iterdir() if self._folder.is_dir() else ():
            if file == self._mine or file.name.startswith("."):
                continue
            try:
                release(hold(file))
                file.unlink(missing_ok=True)  # of a process that has ended
            except BlockingIOError:
                found += 1
            except OSError:
                # removed meanwhile, or left by another user's process that has ended
                continue
        return found

    def leave(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                self._mine.unlink(missing_ok=True)
            release(self._handle)
            self._handle = None
