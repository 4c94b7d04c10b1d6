"""A run is a folder: config.toml, rounds.jsonl, checkpoint/. Killing the process loses at most the round in progress.

A checkpoint is a manifest that names its files and their hashes; files are written under new names and the manifest is
renamed into place last. Client state is written in segments that hold only the rows changed since the last checkpoint,
so a round costs in proportion to its cohort. Segments are merged when they hold more than twice the live rows, and the
smallest ones when there are many. The last few checkpoints are kept and share segments. A damaged checkpoint is skipped
in favour of the one before it, and the user is told.

Nothing in the folder may be a link, a pipe or a device, and only files whose names this program gives are ever removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from unalike.contract.server import Server
from unalike.contract.vectors import Vectors
from unalike.errors import Diverged, UnalikeError, first_line
from unalike.files import check_plain, hold, read_plain, release, replace
from unalike.run import manifest as manifests
from unalike.run.settings import RunSettings
from unalike.settings.knobs import knobs
from unalike.settings.toml import dump_toml, flatten

# Facts that may differ between a run and its continuation without making it another run.
FREE = (*(f"run.{name}" for name, knob in knobs(RunSettings).items() if knob.free), "unalike.version")
# an engine's options change how a run is computed, not its result
FREE_TABLES = ("engine.",)
CURES = {
    "model.fingerprint": "The model's start differs: pass a function that builds the model (ua.simulate(lambda: Net(), "
    "...)), or call torch.manual_seed before building it, so that it repeats; or choose another folder."
}
SEGMENT_BYTES = 256 << 20  # largest merged segment
# beyond this number, the smaller half is merged
SEGMENTS = 64


class RunFolder:
    """One run on disk; notes: messages about its checkpoints for the user."""

    def __init__(
        self,
        path: str | Path,
        config: dict[str, Any],
        resume: bool,
        recipe: dict[str, Any] | None = None,
        usual: dict[str, Any] | None = None,
        keep: int = 1,
        from_round: int | None = None,
    ):
        """usual: values of settings that the config of an earlier version may lack; keep: number of checkpoints to
        keep; from_round: continue from the checkpoint of this round instead of the last."""
        self.path, self._usual, self._keep, self._from = Path(path), flatten(usual or {}), keep, from_round
        self.notes: list[str] = []
        self._older: list[dict[str, Any]] = []  # manifests kept beside the last one
        written = {**recipe, "facts": config} if recipe else config  # with a recipe, config.toml can be run again
        self.checkpoints = self.path / "checkpoint"
        self.manifest: dict[str, Any] | None = None
        if self.path.exists() and not self.path.is_dir():
            raise UnalikeError(f"{self.path} is a file: a run needs a folder.")
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path)
            self._check_links()
        try:
            self._open(config, written, resume)
        except BaseException:
            self._unlock()
            raise

    def _open(self, config: dict[str, Any], written: dict[str, Any], resume: bool) -> None:
        if (self.path / "config.toml").exists():
            self._compare(config)
            self.manifest = self._find_manifest(resume)
            if not resume:
                at = f"round {self.manifest['round']}" if self.manifest else "before its first checkpoint"
                raise UnalikeError(
                    f"{self.path} already holds this run ({at}): continue with resume=True or choose another folder."
                )
            if self.manifest is None and self.history():
                raise UnalikeError(f"{self.path} has rounds and no checkpoint to continue from: choose another folder.")
        elif any(f.name != ".config.toml.new" for f in self.path.iterdir()):
            raise UnalikeError(f"{self.path} is not empty and holds no run: choose another folder.")
        with self.writing():
            # first: this file marks the folder as a run's
            replace(self.path / "config.toml", dump_toml(written).encode())
            self.checkpoints.mkdir(exist_ok=True)
            self._trim_rounds()
            self._log = open(self.path / "rounds.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (open for the run)

    def close(self) -> None:
        # a full disk was reported when the line was written
        with contextlib.suppress(OSError):
            self._log.close()
        self._unlock()

    def _check_links(self) -> None:
        try:
            check_plain(self.path)
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        release(self._lock)
        self._lock = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a full disk into an error of one line; the last checkpoint stays valid."""
        try:
            yield
        except OSError as error:
            kept = f"The checkpoint of round {self.manifest['round']} is kept" if self.manifest else "Nothing was kept"
            raise UnalikeError(
                f"Cannot write to {self.path}: {error.strerror or error}. {kept}; mend it and resume."
            ) from error

    # ---- config

    def _compare(self, config: dict[str, Any]) -> None:
        import tomllib

        try:
            tree = tomllib.loads(read_plain(self.path / "config.toml").decode())
            old = flatten(tree.get("facts", tree))
        except (OSError, ValueError, RecursionError, AttributeError) as error:
            raise UnalikeError(f"{self.path / 'config.toml'} is not readable: {first_line(error)}.") from error
        new = flatten(tomllib.loads(dump_toml(config)))
        before, now = old.get("unalike.version"), new.get("unalike.version")
        if before != now:
            self.notes.append(f"{self.path} was written by version {reprlib.repr(before)}; this is {now}.")
        same_method = old.get("method.name") == new.get("method.name")
        # report a setting that the user chose first, a hash last
        for key in sorted(set(old) | set(new), key=lambda k: ("fingerprint" in k, not k.startswith("run."), k)):
            there, here = old.get(key), new.get(key)
            if key == "model.metrics" and not there:
                continue  # before regressions had metrics
            if same_method and there is None and here is not None and self._usual.get(key) == here:
                continue  # before the method had this option
            if key not in FREE and not key.startswith(FREE_TABLES) and there != here:
                raise UnalikeError(
                    f"{self.path} holds another run: there {key} is {reprlib.repr(there)}, here {reprlib.repr(here)}. "
                    f"{CURES.get(_kind(key), 'Choose another folder.')}"
                )

    def keep(self, name: str, content: dict[str, Any]) -> None:
        """Write `content` as a JSON file of the run; a continued run must have the same content."""
        file, plain = self.path / name, json.loads(json.dumps(content))
        if self.manifest is not None and file.exists() and _json(file) != plain:
            raise UnalikeError(f"{self.path} holds another run: its {name} differs. Choose another folder.")
        with self.writing():
            replace(self.path / name, json.dumps(content).encode())

    # ---- rounds.jsonl

    def log(self, line: dict[str, Any]) -> None:
        text = json.dumps(line) + "\n"
        with self.writing():
            self._log.write(text)
            self._log.flush()
        self._logged.update(text.encode())

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of the rounds so far."""
        return read_rounds(self.path / "rounds.jsonl")

    def _trim_rounds(self) -> None:
        """Drop lines after the checkpoint, and a half-written one: those rounds are run again."""
        last = self.manifest["round"] if self.manifest else 0
        file, lines = self.path / "rounds.jsonl", [line for line in self.history() if line["round"] <= last]
        if len(lines) != last:
            raise UnalikeError(
                f"{file} has {len(lines)} of the {last} rounds before the checkpoint: it "
                "was changed; run again in another folder."
            )
        self._logged = hashlib.sha256(_lines(lines))
        wanted = (self.manifest or {}).get("log", self._logged.hexdigest())
        odd = next((k for k, line in enumerate(lines, 1) if not _timed(line)), None)
        if wanted != self._logged.hexdigest() or odd is not None:
            where = "" if odd is None else f" (line {odd} does not say its seconds)"
            raise UnalikeError(f"{file} was changed after it was written{where}: run again in another folder.")
        replace(file, _lines(lines))

    def trim(self, name: str, last: int) -> None:
        """Cut a file that has one line per round after the line of round `last`."""
        kept = [line for line in read_rounds(self.path / name) if line["round"] <= last]
        with self.writing():
            replace(self.path / name, _lines(kept))

    def append(self, name: str, line: dict[str, Any]) -> None:
        """Add a line to a file beside rounds.jsonl."""
        with self.writing(), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    # ---- checkpoints

    def _find_manifest(self, resume: bool) -> dict[str, Any] | None:
        """Return the manifest to continue from. If the newest is damaged, or `from_round` asks for an older one, that
        older one becomes the last."""
        found, faults = manifests.last(self.checkpoints, whole=resume)
        if found is None or not resume:
            return found
        if faults:
            self.notes.append(f"{faults[0]} The run goes on from the checkpoint before, of round {found['round']}.")
        self._older = self._read_older(found["round"])
        newest, found = found, found if self._from is None else self._chosen(found)
        self._older = [one for one in self._older if one["round"] < found["round"]]
        if faults or found is not newest or not (self.checkpoints / manifests.NAME).exists():
            with self.writing():
                replace(self.checkpoints / manifests.NAME, manifests.sealed(found))
        return found

    def _read_older(self, last: int) -> list[dict[str, Any]]:
        """Return the manifests of kept checkpoints before round `last`, newest first."""
        out = []
        for file in manifests.kept(self.checkpoints):
            with contextlib.suppress(manifests.Spoilt):
                found = manifests.read(file)
                out += [found] if found["round"] < last else []
        return out

    def _chosen(self, newest: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest of the checkpoint that `from_round` asks for."""
        for one in [newest, *self._older]:
            if one["round"] == self._from:
                manifests.verify(self.checkpoints, one)
                return one
        there = ", ".join(str(one["round"]) for one in [newest, *self._older])
        raise UnalikeError(f"{self.path} keeps no checkpoint of round {self._from}: there are those of {there}.")

    def save(self, round: int, server: Server, stores: dict[str, Any]) -> None:
        """Write the state after `round` rounds; `stores` are the client states and the server's tables by name."""
        with self.writing():
            self._save(round, server, stores)

    def _save(self, round: int, server: Server, stores: dict[str, Any]) -> None:
        tensors, numbers = _divide(server.values)
        _check_finite(tensors, round)
        file = self._free_name(f"server-{round:06d}", None)
        digest = self._write(file, tensors)
        old = self.manifest["segments"] if self.manifest else {}
        segments: dict[str, list[dict[str, Any]]] = {}
        for name, store in stores.items():
            ids, rows = store.changed()
            parts = list(old.get(name, []))
            if len(ids):
                parts.append(self._segment(name, round, 0, ids, rows))
            if len(parts) > 8 and sum(p["rows"] for p in parts) > 2 * len(store.known()):
                parts = self._merged(name, round, store)
            elif len(parts) > SEGMENTS:
                parts = self._fewer(name, round, store, parts)
            segments[name] = parts
        # so that the log has all rounds that the checkpoint covers
        os.fsync(self._log.fileno())
        manifest = {
            "round": round, "server": file, "server_sha256": digest, "numbers": numbers, "segments": segments,
            "log": self._logged.hexdigest(),
        }  # fmt: skip
        if self.manifest and self.manifest["round"] < round:
            self._older = [self.manifest, *self._older][: self._keep - 1]
        for older in self._older[:1]:
            name = f"manifest-{older['round']:06d}.json"
            # no sync: a torn file is found by its hash
            replace(self.checkpoints / name, manifests.sealed(older), sync=False)
        replace(self.checkpoints / manifests.NAME, manifests.sealed(manifest))
        self.manifest = manifest
        self._clear()

    def _clear(self) -> None:
        """Remove files of checkpoints that are no longer kept; files with other names than ours stay."""
        named = {f"manifest-{one['round']:06d}.json" for one in self._older}
        named = named.union(*map(manifests.files, [self.manifest or {}, *self._older]))
        for name in os.listdir(self.checkpoints):
            if name not in named and manifests.ours(name):
                (self.checkpoints / name).unlink(missing_ok=True)

    def _free_name(self, stem: str, part: int | None) -> str:
        """Return a file name that no kept checkpoint uses: a round may be written twice."""
        taken = set[str]().union(*map(manifests.files, [*([self.manifest] if self.manifest else []), *self._older]))
        while (name := stem + ("" if part is None else f"-{part:03d}") + ".safetensors") in taken:
            part = 1 if part is None else part + 1
        return name

    def _segment(self, name: str, round: int, part: int, ids: np.ndarray, rows: dict[str, Tensor]) -> dict[str, Any]:
        file = self._free_name(f"{name}-{round:06d}", part)
        digest = self._write(file, {"__ids__": torch.from_numpy(ids), **rows})
        return {"file": file, "rows": len(ids), "sha256": digest}

    def _merged(self, name: str, round: int, store: Any) -> list[dict[str, Any]]:
        known = store.known()
        parts = np.array_split(known, max(1, -(-len(known) * _row_bytes(store) // SEGMENT_BYTES)))
        return [self._segment(name, round, k, ids, store.rows_of(ids)) for k, ids in enumerate(parts, 1)]

    def _fewer(self, name: str, round: int, store: Any, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Merge the smallest segments into one, as far as memory allows. It holds these clients' current rows, so it
        can stand last, where it overrides all earlier segments."""
        smallest = sorted(parts, key=lambda p: p["rows"])[: SEGMENTS // 2]
        bytes_ = np.cumsum([p["rows"] for p in smallest]) * _row_bytes(store)
        chosen = smallest[: int((bytes_ <= SEGMENT_BYTES).sum())]
        if len(chosen) < 2:
            return parts
        ids = np.unique(np.concatenate([self._read(p["file"], "__ids__")["__ids__"].numpy() for p in chosen]))
        files = {p["file"] for p in chosen}
        rest = [p for p in parts if p["file"] not in files]
        return [*rest, self._segment(name, round, 1, ids, store.rows_of(ids))]

    def _write(self, file: str, tensors: dict[str, Tensor]) -> str:
        """Write tensors as a file; return its hash."""
        plain = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
        data = safetensors.torch.save(plain)
        replace(self.checkpoints / file, data)
        return hashlib.sha256(data).hexdigest()

    def load(self, server: Server, stores: dict[str, Any], device: torch.device) -> int:
        """Load the last checkpoint into the server and the stores; return the number of rounds done, 0 if there is no
        checkpoint."""
        if self.manifest is None:
            return 0
        server.values.update(server_values(self.checkpoints, self.manifest, server, device))
        for name, parts in self.manifest["segments"].items():
            for part in parts:
                self._restore(stores.get(name), name, part["file"])
        return int(self.manifest["round"])

    def _restore(self, store: Any, name: str, file: str) -> None:
        """Read the rows of a segment back into their store."""
        rows = self._read(file)
        try:
            if store is None:
                raise UnalikeError(f"this run keeps no {name!r}")
            store.restore(rows.pop("__ids__").numpy(), rows)
        except (UnalikeError, LookupError, ValueError, RuntimeError, TypeError) as error:
            what = f"it is not of this run, {first_line(error)}"
            raise UnalikeError(f"The checkpoint {self.checkpoints / file} cannot be read: {what}.") from error

    def _read(self, file: str, *names: str) -> dict[str, Tensor]:
        return read_tensors(self.checkpoints / file, *names)


def read_tensors(file: Path, *names: str) -> dict[str, Tensor]:
    """Return the tensors in a checkpoint's file: the named ones, or all."""
    try:
        with safetensors.safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in names or tensors.keys()}
    except Exception as error:
        raise UnalikeError(f"The checkpoint {file} cannot be read: {first_line(error)}.") from error


def server_values(
    folder: Path, manifest: dict[str, Any], server: Server, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Return the server's state as a checkpoint holds it; raise if a value that is a tensor in this server is not one
    in the file."""
    file = folder / manifest["server"]
    tensors = {name: tensor.to(device) for name, tensor in read_tensors(file).items()}
    try:
        found = join_values(tensors, architectures_of(server))
    except (ValueError, TypeError, AttributeError) as error:
        raise UnalikeError(f"The checkpoint {file} cannot be read: {first_line(error)}.") from error
    for name, value in server.values.items():
        if isinstance(value, Tensor | Vectors) and (name in manifest["numbers"] or name not in found):
            raise UnalikeError(f"The checkpoint {file} cannot be read: the server's {name!r} is no tensor there.")
    if doubled := sorted(found.keys() & manifest["numbers"].keys()):
        raise UnalikeError(f"The checkpoint {file} cannot be read: {doubled[0]!r} is there and in the manifest.")
    return {**found, **manifest["numbers"]}


def _check_finite(tensors: dict[str, Tensor], round: int) -> None:
    """Raise if a state that is about to be written is not finite: no run could continue from it."""
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise Diverged(
                f"Round {round}: the server's {name!r} became NaN or infinite; the checkpoint before is kept. A "
                "smaller lr or clip_norm=10 usually helps.",
                round,
                [],
            )


def _json(file: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or not JSON."""
    try:
        return json.loads(read_plain(file))
    except (ValueError, RecursionError):
        return None


def _lines(lines: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _timed(line: dict[str, Any]) -> bool:
    """Return whether a round's line has its duration, as every complete line does."""
    return all(type(line.get(name)) in (int, float) for name in ("seconds", "seconds_evaluation"))


def _kind(key: str) -> str:
    """Return the kind of a fact: models.small.fingerprint is a model's fingerprint."""
    table, _, last = key.rpartition(".")
    return f"model.{last}" if table.startswith("models.") else key


def read_rounds(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a rounds.jsonl up to a half-written one."""
    lines: list[dict[str, Any]] = []
    for text in read_plain(file).decode(errors="replace").split("\n") if os.path.lexists(file) else ():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or type(line.get("round")) is not int:
            break
        lines.append(line)
    return lines


def _divide(values: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Divide the server's state into tensors and values for JSON. Tensors in a list are named name.0, name.1; those of
    several architectures name@small, name@large."""
    tensors: dict[str, Tensor] = {}
    numbers = {}
    for name, value in values.items():
        if isinstance(value, Tensor | Vectors):
            tensors |= _parts(name, value)
        elif isinstance(value, list) and value and all(isinstance(v, Tensor | Vectors) for v in value):
            for k, v in enumerate(value):
                tensors |= _parts(f"{name}.{k}", v)
        elif misfit := _misfit(value):
            raise UnalikeError(
                f"The server's {name!r} is or has {misfit}, which a checkpoint cannot hold: use tensors, lists of "
                "tensors, or numbers and text, also in lists and in dicts with text keys."
            )
        else:
            numbers[name] = json.loads(json.dumps(value))
    return tensors, numbers


def _misfit(value: Any) -> str | None:
    """Return what in a value JSON would change, if anything: a tuple becomes a list, a number as a key becomes text."""
    if isinstance(value, list):
        return next(filter(None, map(_misfit, value)), None)
    if isinstance(value, dict):
        keys = (f"a dict with keys of {type(key).__name__}" for key in value if not isinstance(key, str))
        return next(keys, None) or _misfit(list(value.values()))
    return None if value is None or isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"


def _row_bytes(store: Any) -> int:
    """Return the bytes of one client's kept state."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype, life in store.shapes.values() if life == "run")


def _parts(name: str, value: Tensor | Vectors) -> dict[str, Tensor]:
    """Return a tensor, or the tensors of several architectures, by their names in a checkpoint."""
    if isinstance(value, Tensor):
        return {name: value}
    return {f"{name}@{architecture}": part for architecture, part in value.items()}


def join_values(tensors: dict[str, Tensor], architectures: Iterable[str] = ()) -> dict[str, Any]:
    """Undo `_divide`: name.0, name.1, ... become a list again, name@small, name@large become `Vectors` in the order of
    the architectures (a file has them in any order)."""
    whole: dict[str, Any] = {name: value for name, value in tensors.items() if "@" not in name}
    for name in dict.fromkeys(name.partition("@")[0] for name in tensors if "@" in name):
        whole[name] = Vectors({a: tensors[key] for a in architectures if (key := f"{name}@{a}") in tensors})
    values = {name: value for name, value in whole.items() if "." not in name}
    for name in sorted(whole.keys() - values.keys(), key=lambda n: int(n.rpartition(".")[2])):
        values.setdefault(name.rpartition(".")[0], []).append(whole[name])
    return values


def architectures_of(server: Server) -> list[str]:
    """Return the names of the networks in a server's state, if there are several."""
    w = server.values.get("w")  # a serverless method has none
    return w.names if isinstance(w, Vectors) else []


def taken_engine(path: Path, device: str, architecture: str | None = None) -> dict[str, Any] | None:
    """Return the engine that `engine="auto"` chose when this run began on this kind of device (for one architecture,
    where there are several). None for a new run, a run whose engine was given, and a run that began on another
    device."""
    facts = written_facts(path)
    try:
        if (facts["run"]["engine"], facts["run"]["device"]) != ("auto", device):
            return None
        engine = facts["engine"] if architecture is None else facts["engine"]["parts"][architecture]
        return {name: engine[name] for name in ("took", "compiled")}
    # no run yet, or one written before this fact existed
    except (KeyError, TypeError):
        return None


def written_facts(path: Path) -> dict[str, Any]:
    """Return the facts of the run in this folder; an empty dict if there is no run."""
    import tomllib

    try:
        tree = tomllib.loads(read_plain(path / "config.toml").decode())
    except (OSError, ValueError, RecursionError):
        return {}
    facts = tree.get("facts", tree)
    return dict(facts) if isinstance(facts, dict) else {}


def _locked(folder: Path) -> int | None:
    """Lock the folder against other processes and return the handle; the lock ends with this process."""
    try:
        return hold(folder)
    except BlockingIOError:
        raise UnalikeError(f"{folder} is being written by another process: wait for it, or choose another.") from None
