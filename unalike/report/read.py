"""Read run folders into the data of a report: a plain tree for JSON, of limited size however long the runs are.

How it is thinned: a curve keeps at most 400 points (fewer if many runs share the page), evenly spaced, always with the
first and the last. A client's history is rounded to 1/254 of its range and keeps as many evenly spaced rounds as fit
into 1.6 MB for all runs together. Features are shown for one run per method. Classes beyond the 99 most frequent are
merged. The numbers of the last round are not thinned.
"""

from __future__ import annotations

import base64
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from unalike.errors import UnalikeError, first_line
from unalike.files import read_plain
from unalike.metrics import names
from unalike.metrics.lines import choose, is_finite, is_number, thin, traffic
from unalike.metrics.names import Number
from unalike.report import forest, parties, record
from unalike.results.evidence import REFERENCES
from unalike.run.folder import FREE, read_rounds
from unalike.settings.toml import flatten

PRINTS = ("data.fingerprint", "data.public_fingerprint", "model.fingerprint")  # facts that differ from run to run
STAGES = "channel.stages"  # the fact that names the channel's stages

CURVE_POINTS, CURVE_NUMBERS = 400, 120_000
HISTORY_BYTES, HISTORY_ROUNDS = 1_600_000, 1000
CLUSTER_ROUNDS, CLUSTER_NUMBERS = 200, 60_000
MOST_CLASSES = 100


def find(folders: list[Path]) -> list[Path]:
    """Return the run folders among these and directly inside them, in order."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UnalikeError(f"{folder} is not a folder: give the folder of a run, or one that holds several.")
        inside = [f for f in sorted(folder.iterdir()) if (f / "config.toml").is_file()]
        runs = [folder] if (folder / "config.toml").is_file() else inside
        if not runs:
            raise UnalikeError(f"{folder} holds no run: there is no {folder / 'config.toml'}, nor one a folder deeper.")
        found += [run for run in runs if run not in found]
    return found


def read(folders: list[Path]) -> dict[str, Any]:
    """Return everything that the page shows of these runs."""
    runs = [RunFiles(folder) for folder in folders]
    begun = [run for run in runs if run.lines]
    if not begun:
        raise UnalikeError(f"{folders[0]} has no finished round yet: there is nothing to report.")
    groups = _groups(runs)
    numbers = names.numbers({name: higher for run in begun for name, higher in run.metrics.items()})
    keys = _metrics(begun, numbers)
    points = max(20, min(CURVE_POINTS, CURVE_NUMBERS // (len(begun) * max(1, len(keys)))))
    share = HISTORY_BYTES // len(begun)
    clients: list[dict[str, Any]] = []
    firsts = [group["members"][0] for group in groups]
    out = [
        {
            "folder": run.path.name,
            "seed": run.seed,
            "method": run.method,
            "rounds": run.lines[-1]["round"],
            "asked": run.facts.get("run", {}).get("epochs" if run.is_vertical else "rounds"),
            **_curves(run, keys, points),
            "clients": _place(clients, _clients(run)),
            **_values(run, share),
            "by_class": run.last.get("by_class"),
            "clusters": _clusters(run) if run in firsts else None,
            "forest": run.forest if run in firsts else None,
            "features": _features(run) if run in firsts and run.who.get("client") else [],
        }
        for run in begun
    ]
    return {
        **_headline(begun, groups),
        "metrics": [_metric(names.of(key, numbers)) for key in keys],
        "groups": [{"label": g["label"], "runs": [begun.index(run) for run in g["members"]]} for g in groups],
        "summary": _summary(groups, numbers),
        "step": parties.STEP if all(run.is_vertical for run in begun) else "round",
        "privacy": _privacy(groups),
        "vertical": [parties.shown(g["label"], run.vertical) for g in groups if (run := g["members"][0]).is_vertical],
        "settings": _settings(groups),
        "commands": [{"run": run.path.name, "command": command(run.config)} for run in begun],
        "idle": [run.path.name for run in runs if not run.lines],
        "runs": out,
        "clients": clients,
    }


class RunFiles:
    """The files of one run folder, as they are now: a run in progress is read up to its last complete line."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.config = tomllib.loads(read_plain(path / "config.toml").decode())
        except (OSError, ValueError, RecursionError) as error:
            raise UnalikeError(f"{path / 'config.toml'} cannot be read: {first_line(error)}.") from error
        self.facts = self.config.get("facts", self.config)
        self.lines = read_rounds(path / "rounds.jsonl")
        self.vertical = (_json(path / parties.FILE) or {}) if "vertical" in self.config else None
        self.metrics = parties.metrics(self.lines) if self.is_vertical else names.from_facts(self.facts)
        self.record = {line["round"]: line for line in read_rounds(path / record.FOLDER / record.ROUNDS)}
        self.last = _json(path / record.FOLDER / record.LAST) or {}
        self.who = _json(path / record.FOLDER / record.CLIENTS) or {}
        for line in self.lines:
            line |= {k: v for k, v in self.record.get(line["round"], {}).items() if k.startswith("drift_")}

    @property
    def is_vertical(self) -> bool:
        """Return whether its parties hold different columns of the same people."""
        return self.vertical is not None

    @property
    def method(self) -> str:
        if self.is_vertical:
            return str(self.config["vertical"].get("method", "vertical"))
        table = self.config.get("method", {})
        return str(table.get("name") or self.facts.get("method", {}).get("name") or "fedavg")

    @property
    def forest(self) -> list[Any] | None:
        """Return what may be seen of boosted trees: one view, or of a vertical run one per party that is here."""
        names = self.config["vertical"].get("parties") if self.is_vertical else None
        folders = [str(name) for name in names or [] if str(name) == Path(str(name)).name]
        views = [_json(self.path / name / forest.FILE) for name in folders]
        given = self.last.get("forest")
        return forest.shown([*views, *(given if isinstance(given, list) else [])]) or None

    @property
    def reference(self) -> bool:
        """Return whether the run is a reference line; a run from a Python program is recognised by its method's class
        name."""
        return self.method.replace("-", "").lower() in [name.replace("-", "") for name in REFERENCES]

    @property
    def seed(self) -> int | None:
        return self.facts.get("run", {}).get("seed")

    @property
    def final(self) -> dict[str, Any]:
        """Return the last line that has a result."""
        return next((line for line in reversed(self.lines) if _results(line)), self.lines[-1])

    @property
    def bytes(self) -> int:
        return sum(map(traffic, self.lines))

    @property
    def seconds(self) -> float:
        return sum(line.get("seconds") or 0.0 for line in self.lines)

    def settings(self) -> dict[str, Any]:
        """Return all settings in one flat dict, without those that do not change the result."""
        recipe: list[str] = ["data", "model"] if "facts" in self.config else []
        flat = flatten(self.facts) | flatten({t: self.config[t] for t in recipe if t in self.config})
        return {k: v for k, v in flat.items() if not k.startswith("unalike.")}

    def identity(self) -> str:
        """Return a text that is equal for runs that differ in their seed alone."""
        free = (*FREE, "run.seed", "data.seed", *PRINTS, "data.samples")
        kept = {k: v for k, v in self.settings().items() if k not in free and not k.startswith("engine.")}
        # for several networks: [data.pictures] seed and the like
        of_parts = (("models.", ".fingerprint"), ("data.", ".seed"))
        kept = {k: v for k, v in kept.items() if not any(k.startswith(a) and k.endswith(b) for a, b in of_parts)}
        return json.dumps([self.method, kept], sort_keys=True, default=str)


def _json(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(read_plain(file))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# ---------------------------------------------------------------- curves


def _results(line: dict[str, Any]) -> list[str]:
    """Return the metrics in a round's line that come from evaluation."""
    return [k for k in _numbers(line) if names.of(k).source == "evaluation"]


def _numbers(line: dict[str, Any]) -> list[str]:
    return [k for k, v in line.items() if is_number(v) and names.of(k).source != "bookkeeping"]


def _metrics(runs: list[RunFiles], numbers: dict[str, Number]) -> list[str]:
    found: dict[str, None] = {}
    for run in runs:
        for line in (run.lines[0], run.final, run.lines[-1]):
            found |= dict.fromkeys(_numbers(line))
    order = [k for k in numbers if k in found]
    # a metric that all runs have, and the one for personal models, comes first
    if order and _personal(runs):
        own = f"clients_{numbers[order[0]].metric}_mean"
        order.sort(key=lambda k: k != own)
    return order + [k for k in found if k not in order]


def _personal(runs: list[RunFiles]) -> bool:
    """Return whether some run gives clients their own models, so that there are two measures; training alone does not
    count."""
    final = [run.final for run in runs if not run.reference]
    tested = [any(k.startswith("test_") for k in line) for line in final]
    return any("gain_share" in line for line in final) or (any(tested) and not all(tested))


def _metric(number: Number) -> dict[str, Any]:
    key, percent = number.key, number.unit == "percent"
    return {"key": key, "label": number.label, "percent": percent, "drift": key.startswith("drift_")}


def _curves(run: RunFiles, keys: list[str], points: int) -> dict[str, Any]:
    lines = run.lines
    sent = np.cumsum([traffic(line) for line in lines]).tolist()
    seconds = np.cumsum([line.get("seconds") or 0.0 for line in lines]).tolist()
    evaluated = [k for k, line in enumerate(lines) if _results(line)]
    kept = {int(k) for k in thin(len(lines), points)}
    kept |= {evaluated[k] for k in thin(len(evaluated), points)}
    rows = sorted(kept)
    x = {"rounds": [lines[k]["round"] for k in rows]}
    if any("seconds" in line for line in lines):
        x["seconds"] = [round(seconds[k], 3) for k in rows]
    if not run.reference:  # reference lines send nothing in reality
        x["bytes"] = [sent[k] for k in rows]
    if all("virtual_seconds" in line for line in lines):
        x["virtual time"] = [_short(lines[k]["virtual_seconds"]) for k in rows]
    y = {key: [_short(lines[k].get(key)) for k in rows] for key in keys}
    return {"x": x, "y": {key: values for key, values in y.items() if any(v is not None for v in values)}}


def _short(value: Any, digits: int = 5) -> float | None:
    """Return a number rounded to five digits; None if it is missing or infinite."""
    return float(f"{value:.{digits}g}") if is_finite(value) else None


# ---------------------------------------------------------------- clients


def _clients(run: RunFiles) -> dict[str, Any] | None:
    who = run.who
    if not who.get("client"):
        return None
    labels, classes = who.get("labels"), None
    if labels:
        counts = np.asarray(labels)
        classes = who.get("label_names") or [str(k) for k in range(counts.shape[1])]
        if len(classes) > MOST_CLASSES:
            order = np.sort(np.argsort(-counts.sum(0), kind="stable")[: MOST_CLASSES - 1])
            rest = counts.sum(1) - counts[:, order].sum(1)
            counts, classes = np.column_stack([counts[:, order], rest]), [*(classes[k] for k in order), "all others"]
        labels = counts.tolist()
    known = {"population": who.get("population"), "ids": who["client"], "names": who.get("name")}
    known["planted"] = who.get("planted")
    return {**known, "samples": who.get("samples"), "labels": labels, "classes": classes}


def _place(known: list[dict[str, Any]], new: dict[str, Any] | None) -> int | None:
    """Return the index of these clients in the list, adding them if need be: runs on the same data share one entry."""
    if new is None:
        return None
    if new not in known:
        known.append(new)
    return known.index(new)


def _values(run: RunFiles, budget: int) -> dict[str, Any]:
    """Return every client's number after the last evaluated round, and over the rounds."""
    last, nothing = run.lines[-1]["round"], {"score": None, "values": None, "history": None}
    lines = [line for line in run.record.values() if line["round"] <= last and isinstance(line.get("loss"), str)]
    if not lines or not run.who.get("client"):
        return nothing
    hidden = ("features", "clusters")
    found = [k for k, v in lines[-1].items() if isinstance(v, str) and k not in hidden and not k.startswith("global_")]
    # the headline metric; accuracy if a run's facts do not name it
    name = next((n for n in (*run.metrics, "accuracy", *found) if n in found and n != "loss"), "loss")
    count = len(run.who["client"])
    rows = [(line["round"], record.unpack(line[name])) for line in lines if isinstance(line.get(name), str)]
    rows = [(t, v) for t, v in rows if len(v) == count]
    if not rows:
        return nothing
    kept = [rows[k] for k in thin(len(rows), min(HISTORY_ROUNDS, budget // count))]
    table = np.stack([v for _, v in kept]).astype(np.float64)
    table[~np.isfinite(table)] = np.nan
    known = table[~np.isnan(table)]
    low, high = (0.0, 1.0) if name in names.SHARES else (float(known.min(initial=0)), float(known.max(initial=1)))
    steps = np.where(np.isnan(table), 255, np.round((table - low) / ((high - low) or 1) * 254)).astype(np.uint8)
    packed = base64.b64encode(steps.tobytes()).decode()
    return {
        "score": name,
        "name": names.spoken(name),
        "percent": name in names.SHARES,
        "better": "higher" if run.metrics.get(name, name != "loss") else "lower",
        "values": [_short(float(v)) for v in rows[-1][1]],
        "history": {"rounds": [t for t, _ in kept], "of": len(rows), "low": low, "high": high, "bytes": packed},
    }


def _clusters(run: RunFiles) -> dict[str, Any] | None:
    """Return each client's cluster over the rounds (-1: none yet), the clusters after the last round, and the tree of
    splits if they were made by splitting."""
    last, count = run.lines[-1]["round"], len(run.who.get("client") or ())
    lines = [line for line in run.record.values() if line["round"] <= last and isinstance(line.get("clusters"), str)]
    if not lines or not count:
        return None
    kept = [lines[k] for k in thin(len(lines), min(CLUSTER_ROUNDS, max(2, CLUSTER_NUMBERS // count)))]
    found = [np.nan_to_num(record.unpack(line["clusters"]), nan=-1).astype(int) for line in kept]
    name = next((n for n in (*run.metrics, "accuracy") if isinstance(kept[-1].get(n), str)), None)
    own = record.unpack(kept[-1][name]) if name else np.full(count, np.nan)
    parts = []
    for cluster in np.unique(found[-1]).tolist():
        mine = own[found[-1] == cluster]
        score = float(np.nanmean(mine)) if np.isfinite(mine).any() else None
        parts.append({"cluster": cluster, "clients": int((found[-1] == cluster).sum()), "score": _short(score)})
    return {
        "rounds": [line["round"] for line in kept],
        "of": [row.tolist() for row in found],
        "parts": parts,
        "score": name and names.spoken(name),
        "percent": name in names.SHARES,
        "ari": _short(run.final.get("cluster_ari")),
        "tree": run.last.get("tree"),
    }


def _features(run: RunFiles) -> list[dict[str, Any]]:
    """Return the clients' features on two axes, one picture per recorded round; axes keep their direction."""
    lines = [line for line in run.record.values() if "features" in line]
    if "features" in run.last and run.last["round"] not in {line["round"] for line in lines}:
        lines.append(run.last)
        lines.sort(key=lambda line: line["round"])  # a resumed run may have an older picture last
    pictures = []
    reference: np.ndarray | None = None
    for line in reversed(lines):
        points = record.unpack(line["features"]).reshape(-1, 2).astype(np.float64)
        if reference is not None and reference.shape == points.shape:
            points = points * np.where((points * reference).sum(0) < 0, -1, 1)
        reference = points
        numbers = [_short(v, 4) for v in points.ravel()]
        explained = [_short(v, 3) for v in line["explained"]]
        picture = {"round": line["round"], "places": line["places"], "points": numbers, "explained": explained}
        pictures.append(picture)
    pictures.reverse()
    for picture in pictures[1:]:
        if picture["places"] == pictures[0]["places"]:
            picture["places"] = None  # the same as in the first picture
    return pictures


# ---------------------------------------------------------------- words


def _groups(runs: list[RunFiles]) -> list[dict[str, Any]]:
    """Group runs that differ in their seed alone and name each group: the method, and the settings that distinguish it
    from others of the same method, including runs that have no finished round and are not shown."""
    found: dict[str, list[RunFiles]] = {}
    for run in runs:
        found.setdefault(run.identity(), []).append(run)
    groups = [{"label": "", "members": members} for members in found.values()]
    for group in groups:
        first: RunFiles = group["members"][0]  # type: ignore[assignment]
        namesakes = [g["members"][0].settings() for g in groups if g["members"][0].method == first.method]  # type: ignore
        own = first.settings()
        skip = (*FREE, "run.seed", *PRINTS)
        differ = [k for k in own if k not in skip and any(other.get(k) != own[k] for other in namesakes)]
        words = [f"{k.partition('.')[2] or k} = {own[k]}" for k in differ if k != STAGES]
        words += [f"channel = {','.join(own[STAGES])}"] if STAGES in differ else []
        group["label"] = ", ".join([first.method, *words])
    for group in groups:
        group["members"] = [run for run in group["members"] if run.lines]  # type: ignore[attr-defined]
    kept = [group for group in groups if group["members"]]
    return sorted(kept, key=lambda group: group["members"][0].reference)  # type: ignore[index]


def _headline(runs: list[RunFiles], groups: list[dict[str, Any]]) -> dict[str, Any]:
    first = runs[0]
    if first.vertical is not None:
        name = parties.title(groups[0]["label"] if len(groups) == 1 else f"{len(groups)} methods", first.vertical)
        return {"title": name, "facts": parties.facts(first.vertical, max(run.lines[-1]["round"] for run in runs))}
    facts, settings = first.facts, first.settings()
    path = Path(str(settings.get("data.table") or settings.get("data.folder", "")))
    data = str(settings.get("data.name") or (path.stem if "data.table" in settings else path.name))
    methods = dict.fromkeys(g["members"][0].method for g in groups)
    plain = dict.fromkeys(g["members"][0].method for g in groups if not g["members"][0].reference)
    methods = plain or methods
    single = groups[0]["label"] if len(groups) == 1 else next(iter(methods))
    who = f"{len(methods)} methods" if len(methods) > 1 else single
    seeds = max(len(g["members"]) for g in groups)
    clients, samples = (facts.get("data", {}).get(name) for name in ("clients", "samples"))
    size = settings.get("model.parameters")
    words = [
        f"{clients:,} clients" if clients else "",
        str(settings.get("data.partition", "")),
        f"{samples:,} training samples" if samples else "",
        f"{settings.get('model.name', settings.get('model.class'))}, {size:,} parameters" if size else "",
        f"{max(run.lines[-1]['round'] for run in runs):,} rounds{_share(runs)}",
        f"{seeds} seeds" if seeds > 1 else "",
    ]
    return {"title": f"{who} on {data}" if data else who, "facts": [w for w in words if w]}


def _share(runs: list[RunFiles]) -> str:
    """Return the number of clients per round in words; of asynchronous runs, of those at work; nothing where some are
    and some are not."""
    run = runs[0]
    places = {"at work" if "under_way" in one.lines[-1] else "in each" for one in runs}
    if len(places) > 1:
        return ""
    (where,) = places
    given = run.config.get("run", {}).get("clients_per_round", run.facts.get("participation", {}).get("fraction"))
    if isinstance(given, float) and given < 1:
        return f" with {given:.3g} of the clients {where}"
    return f" with {given} clients {where}" if isinstance(given, int | str) and given != 1 else ""


def _summary(groups: list[dict[str, Any]], numbers: dict[str, Number]) -> dict[str, Any]:
    """Return mean and standard deviation (n - 1) over the seeds of each method, after the last round."""
    columns = [number for number in numbers.values() if number.summary]
    rows = []
    for group in groups:
        members: list[RunFiles] = group["members"]
        cells = {}
        for number in columns:
            values = [n for n in (_final(run, number) for run in members) if n is not None]
            if values:
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
                cells[number.key] = [float(np.mean(values)), spread]
        reference = members[0].reference
        rows.append({"label": group["label"], "seeds": len(members), "cells": cells, "reference": reference})
    shown = [number for number in columns if any(number.key in row["cells"] for row in rows)]
    if len(rows) > 1 and len({row["cells"]["rounds"][0] for row in rows}) == 1:
        shown = [number for number in shown if number.key != "rounds"]  # the headline says it already
    personal = _personal([run for group in groups for run in group["members"]])
    return {"columns": [_column(number, personal) for number in shown], "rows": rows}


def _column(number: Number, personal: bool) -> dict[str, str]:
    """Return a column of the table; if clients have their own models, its title says which model is meant."""
    kind = "plain" if number.unit == "pp²" else number.unit
    whose = {"test": "global model, test set", "clients": "clients' own data"}
    place, _, rest = number.key.partition("_")
    said = personal and place in whose and rest in (number.metric, f"{number.metric}_mean")
    return {
        "label": f"{number.name}, {whose[place]}" if said else number.summary,
        "key": number.key,
        "kind": kind,
        "better": number.better,
    }


def _final(run: RunFiles, number: Number) -> float | None:
    key = number.key
    if (key == "bytes" and run.reference) or (key == "seconds" and not run.seconds):
        return None
    if key in ("bytes", "seconds"):
        return float(getattr(run, key))
    if key == "rounds":
        return float(run.lines[-1]["round"])
    # the test value in the round chosen by validation data
    if key.startswith("selected_"):
        test = f"test_{number.metric}"
        chosen = choose([line for line in run.lines if test in line], number)
        return chosen[test] if chosen else None
    if key == "epsilon" and run.final.get("epsilon_pld") is not None:
        key = "epsilon_pld"  # the same ε as in the guarantee
    return _short(run.final.get(key), 12)


def _settings(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return settings as a table: one column per method, rows that differ first."""
    columns = [g["members"][0].settings() for g in groups]
    keys = list(dict.fromkeys(k for c in columns for k in c if "fingerprint" not in k and k != "run.seed"))
    rows = []
    for key in keys:
        values = ["" if key not in c else _word(c[key]) for c in columns]
        rows.append({"key": key, "values": values, "differs": len(set(values)) > 1})
    rows.sort(key=lambda row: not row["differs"])
    return {"columns": [g["label"] for g in groups], "rows": rows}


def _privacy(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for groups whose runs recorded it: what leaves a client, who sees what, the channel, and the bytes it
    saves."""
    out = []
    for group in groups:
        run: RunFiles = group["members"][0]
        leaves, rows = run.who.get("leaves"), run.who.get("who_sees")
        if isinstance(leaves, str):
            sees = [[str(row[key]) for key in ("who", "of", "words")] for row in rows or () if _is_sight(row)]
            out.append({"label": group["label"], "leaves": leaves, "sees": sees, **_through(run)})
    return out


def _is_sight(row: Any) -> bool:
    return isinstance(row, dict) and {"who", "of", "words"} <= row.keys()


def _through(run: RunFiles) -> dict[str, Any]:
    """Return a run's channel, the bytes sent up with it and without it, and ε and δ after the last round."""
    stages, last = run.facts.get("channel", {}).get("stages") or [], run.lines[-1]
    plain = sum(line.get("bytes_up_plain") or 0 for line in run.lines)
    up = sum(line.get("bytes_up") or 0 for line in run.lines) if not run.reference else 0
    return {
        "channel": [str(stage) for stage in stages],
        "up": up,
        "plain": plain or None,
        "epsilon": _short(last.get("epsilon_pld") or last.get("epsilon")),
        "delta": _short(run.who.get("delta")),
    }


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else text[:197] + "..."


def command(config: dict[str, Any]) -> str | None:
    """Return the command line that repeats the run; None for a run started by a Python program, and for one with
    several networks, which needs a file."""
    if "facts" not in config or "models" in config:
        return None
    # imported here, so that a report can be read without the other packages
    from unalike import config as settings
    from unalike.config import flags

    tables = {table: settings.every(table) for table in settings.TABLES}
    words = ["unalike", "run"]
    for table in settings.TABLES:
        for name, value in config.get(table, {}).items():
            if (table, name) in (("run", "folder"), ("run", "resume")):
                continue
            short = (table, name) in flags.SHORT.values() or [t for t in tables if name in tables[t]] == [table]
            flag = flags.flag(table, name) if short else f"--{table}.{name.replace('_', '-')}"
            flag = f"--{table}" if name == "file" and table in ("model", "method") else flag
            text = value if isinstance(value, str) else json.dumps(value)
            text = settings.channel_text(value) if (table, name) == ("run", "channel") else text
            words += [flag, shlex.quote(text)]
    return " ".join(words)


def comparison(file: Path) -> dict[str, Any] | None:
    """Return the content of comparison.json; None if there is no such file."""
    if not file.is_file():
        return None
    found = _json(file)
    if found is None:
        raise UnalikeError(f"{file} is not a JSON object: run the comparison again, or remove the file.")
    return found
