"""`python -m unalike.core run.toml [--resume]`: a run from a file, where only torch, numpy and safetensors exist."""

from __future__ import annotations

import argparse
import sys

from unalike import config
from unalike.callbacks import Progress
from unalike.errors import UnalikeError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m unalike.core", description="Run a federated learning config.")
    parser.add_argument("config", help="a TOML file with [data], [model], [method], [local] and [run]")
    parser.add_argument("--resume", action="store_true", help="continue the run in its folder")
    parser.add_argument("--debug", action="store_true", help="show a traceback for errors")
    args = parser.parse_args(arguments)
    try:
        run = config.run(config.read(args.config), callbacks=[Progress()], resume=args.resume)
    except UnalikeError as error:
        if args.debug:
            raise
        print(f"unalike: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nunalike: stopped; continue with: python -m unalike.core {args.config} --resume", file=sys.stderr)
        return 130
    final = run.summary()["final"] or {}
    for name, value in final.items():
        if isinstance(value, float):
            print(f"{name:<32}{value:.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
