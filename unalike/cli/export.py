"""Runs as tables for other programs, and final models as files.

unalike export runs/demo --csv                 a row a round, all runs in it
unalike export runs/demo --csv --clients       a row a round and client
unalike export runs/demo --parquet             the same as parquet
unalike export runs/scaffold-digits-1 --deploy       model.unalike, for `unalike predict` and ua.load_model
unalike export runs/scaffold-digits-1 --safetensors
unalike export runs/scaffold-digits-1 --onnx --out model.onnx
unalike export runs/hist-boost-digits-1 --xgboost            model.json, for xgboost.Booster(model_file=...)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from unalike.cli import show
from unalike.errors import UnalikeError
from unalike.files import complaining

KINDS = {
    "csv": "the rounds as CSV",
    "parquet": "the rounds as parquet",
    "deploy": "the model as one file to be used: weights, preparation, names",
    "safetensors": "the model's weights by name",
    "onnx": "the model as ONNX",
    "xgboost": "boosted trees as XGBoost's JSON",
}

ENDINGS = {"deploy": "unalike", "xgboost": "json"}


def arguments(parser: argparse.ArgumentParser) -> None:
    folder = parser.add_argument("folder", metavar="FOLDER", help="a run's folder; for tables also one that holds runs")
    kinds = parser.add_mutually_exclusive_group(required=True)
    for kind, text in KINDS.items():
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    parser.add_argument("--clients", action="store_true", help="one row per round and client instead of one per round")
    parser.add_argument("--architecture", metavar="NAME", help="whose model, where clients have different networks")
    parser.add_argument("--allow-code", action="store_true", help="run Python files that the run's config.toml names")
    out = parser.add_argument("--out", metavar="FILE", help="default: in the folder")
    folder.complete, out.complete = shtab.DIRECTORY, shtab.FILE  # type: ignore[attr-defined]


def main(args: argparse.Namespace) -> int:
    from unalike.report import export

    folder = Path(args.folder)
    model = f"model-{args.architecture}" if args.architecture else "model"
    stem = "clients" if args.clients else "rounds" if args.kind in export.TABLES else model
    file = Path(args.out) if args.out else folder / f"{stem}.{ENDINGS.get(args.kind, args.kind)}"
    if args.clients and args.kind in export.MODELS:
        raise UnalikeError("unalike export: --clients is for tables: --csv or --parquet.")
    with complaining(f"{file} cannot be written"):
        if args.kind in export.TABLES:
            table = (export.clients if args.clients else export.rounds)([folder])
            export.TABLES[args.kind](table, file)
        else:
            export.MODELS[args.kind](folder, file, args.architecture, args.allow_code)
    return show.written(args, "file", file)
