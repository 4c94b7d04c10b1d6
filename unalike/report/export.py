"""Export runs as flat tables and final models as files, for other programs: `unalike export`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from unalike.errors import UnalikeError, first_line
from unalike.files import replace, replacing
from unalike.report import record
from unalike.report.read import RunFiles, find
from unalike.run import manifest as manifests
from unalike.run.deploy import DEPLOYABLE
from unalike.run.folder import server_values
from unalike.run.run import Run
from unalike.text import csv_text
from unalike.trees import save_xgboost

Table = dict[str, list[Any]]


def rounds(folders: list[Path]) -> Table:
    """Return one row per round: run, method, seed, every number of rounds.jsonl, and drift if it was recorded."""
    return _columns([{**_who(run), **line} for run in map(RunFiles, find(folders)) for line in run.lines])


def clients(folders: list[Path]) -> Table:
    """Return one row per round and client: run, method, seed, round, client, its name and size, its loss and
    metrics."""
    rows = []
    for run in map(RunFiles, find(folders)):
        ids = run.who.get("client") or []
        names = run.who.get("name") or [None] * len(ids)
        for line in run.record.values():
            values = {k: record.unpack(v) for k, v in line.items() if isinstance(v, str) and k != "features"}
            for k, client in enumerate(ids):
                numbers = {name: float(column[k]) for name, column in values.items() if column[k] == column[k]}
                whose = {"round": line["round"], "client": client, "name": names[k], "samples": run.who["samples"][k]}
                rows += [{**_who(run), **whose, **numbers}] if numbers else []
    if not rows:
        raise UnalikeError(
            f"{folders[0]} has no records of single clients: run it with callbacks=[unalike.report.Record()] and give "
            "clients a test share."
        )
    return _columns(rows)


def _who(run: RunFiles) -> dict[str, Any]:
    return {"run": run.path.name, "method": run.method, "seed": run.seed}


def _columns(rows: list[dict[str, Any]]) -> Table:
    if not rows:
        raise UnalikeError("There is no finished round yet: there is nothing to export.")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _inert(cell: Any) -> Any:
    """Mark a name that a spreadsheet would take for a formula as text."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def write_csv(table: Table, file: Path) -> None:
    """Write a header and one line per row; unknown values are empty."""
    replace(file, csv_of(table).encode())


def csv_of(table: Table) -> str:
    """Return a table as the text of a CSV file."""
    rows = ([_inert(cell) for cell in row] for row in zip(*table.values(), strict=True))
    return csv_text([table, *rows])


def write_parquet(table: Table, file: Path) -> None:
    """Write a parquet file with pyarrow or polars, whichever is installed."""
    with replacing(file) as new:
        try:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table(table), new)
        except ImportError:
            try:
                import polars
            except ImportError as error:
                raise UnalikeError("Parquet needs pyarrow or polars: pip install pyarrow.") from error
            polars.DataFrame(table, infer_schema_length=None).write_parquet(new)


# ---------------------------------------------------------------- models


def finished(folder: Path, architecture: str | None = None, allow_code: bool = False) -> tuple[Run, dict[str, Any]]:
    """Return the run with the server's state from its last complete checkpoint, and its [model] table (of this
    network)."""
    from unalike import config

    tree = config.load_toml(folder / "config.toml") if (folder / "config.toml").is_file() else {}
    if not tree:
        raise UnalikeError(f"{folder} holds no run: there is no {folder / 'config.toml'}.")
    if config.FACTS not in tree:
        raise UnalikeError(
            f"{folder} was written by a Python program, which alone knows the model: use run.save(...) there."
        )
    checkpoint = folder / "checkpoint"
    manifest, _ = manifests.last(checkpoint, only="server")
    if manifest is None:
        raise UnalikeError(f"{folder} has no checkpoint yet: there is no model to export.")
    tables = config.read_tables(folder / "config.toml", allow_code)
    tables["run"] = {k: v for k, v in tables["run"].items() if k not in ("folder", "resume", "device", "engine")}
    if not {"name", "table", "folder"} & tables["data"].keys() and not config.data_parts(tables["data"]):
        raise UnalikeError(f"{folder} is a server's, which had no data: its model is in {folder / DEPLOYABLE}.")
    run = config.run({**tables, "run": {**tables["run"], "rounds": 0, "device": "cpu"}})
    run.server.values.update(server_values(checkpoint, manifest, run.server))
    if run.architectures is None and architecture is None:
        return run, tables["model"]
    if architecture not in run.tasks or run.architectures is None:
        names = ", ".join(run.tasks) if run.architectures else "none, all clients have one"
        raise UnalikeError(f"Say which network is exported, --architecture NAME: {names}.")
    return run, tables[config.MODELS_TABLE][architecture]


def write_deployable(folder: Path, file: Path, architecture: str | None = None, allow_code: bool = False) -> None:
    """Write the model with everything needed to use it as one file, for `ua.load_model(file)` and `unalike predict`."""
    run, table = finished(folder, architecture, allow_code)
    run.save(file, source=table.get("file"), architecture=architecture)


def write_safetensors(folder: Path, file: Path, architecture: str | None = None, allow_code: bool = False) -> None:
    """Write parameters and buffers by name; `module.load_state_dict(safetensors.torch.load_file(file))` reads them."""
    run, _ = finished(folder, architecture, allow_code)
    module = run.model if architecture is None else run.models[architecture]
    replace(file, safetensors.torch.save({name: t.contiguous() for name, t in module.state_dict().items()}))


def write_onnx(folder: Path, file: Path, architecture: str | None = None, allow_code: bool = False) -> None:
    """Write the model as ONNX: one input `x`, one output `output`, any number of samples."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        missing = f"ONNX needs onnx and onnxscript; {error.name} is missing: pip install onnx onnxscript."
        raise UnalikeError(missing) from error
    run, _ = finished(folder, architecture, allow_code)
    module = run.model if architecture is None else run.models[architecture]
    sample = run.parts[architecture or next(iter(run.tasks))].train.x[:2]
    log = logging.getLogger("torch.onnx")
    level = log.level
    # torch.onnx warns of operators that this model does not have
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's warnings about its own code
            program = torch.onnx.export(
                module, (sample,), dynamo=True, input_names=["x"], output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
            )  # fmt: skip
            assert program is not None
            replace(file, program.model_proto.SerializeToString())
    except (UnalikeError, OSError):
        raise
    except Exception as error:
        raise UnalikeError(f"PyTorch cannot write this model as ONNX: {first_line(error)}") from error
    finally:
        log.setLevel(level)


def write_xgboost(folder: Path, file: Path, architecture: str | None = None, allow_code: bool = False) -> None:
    """Write a forest as XGBoost's JSON; it takes features as the run prepared them."""
    run, _ = finished(folder, architecture, allow_code)
    if run.forest is None:
        raise UnalikeError(f"{folder} grew no trees: XGBoost's file is for methods that do, such as hist-boost.")
    save_xgboost(run.forest, file)


TABLES: dict[str, Callable[[Table, Path], None]] = {"csv": write_csv, "parquet": write_parquet}
MODELS: dict[str, Callable[[Path, Path, str | None, bool], None]] = {
    "deploy": write_deployable,
    "safetensors": write_safetensors,
    "onnx": write_onnx,
    "xgboost": write_xgboost,
}
