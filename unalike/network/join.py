"""Join a federation with data of your own.

  unalike join server.example.org:8443 --ca ca.crt --key hospital-a \\
               --data mine.npz --state state/
  unalike join ... --data mine.csv --schema schema.json
  unalike join ... --public public.npz        for methods that need a public set

The data stay here; so does what a method keeps of this client (--state). The
server is told how many samples there are, their shape and the number of
classes, and is sent what the method sends. Nothing that it sends is run: this
client has its own copy of every method. --policy FILE, or flags such as
--methods and --max-steps, say what it is willing to do; a method, model or loss
of somebody's own needs --file. --ask shows what is wanted and waits for a yes.
All that leaves is noted in STATE/audit.jsonl (`unalike audit STATE`). What a
method sends from client to client is sealed for the receiver's key. --peers
FOLDER, with the other clients' .pub files, accepts no other keys; without it
the server says which key is whose, and must be honest about that.

It waits for a server that is away, joins again after either was started anew,
and goes on where it was. Ctrl-C leaves.
"""

from __future__ import annotations

import argparse
import json
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

from unalike.data.extras import read_public
from unalike.data.federation import SPLITS, Federation
from unalike.data.files import SUFFIXES, read_arrays, split_names
from unalike.data.schema import Schema
from unalike.data.tables import encoded
from unalike.errors import UnalikeError, complain
from unalike.network import keys, policy
from unalike.network.client import Client, attend
from unalike.network.processes import lifeline


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="HOST:PORT", help="where the server is")
    parser.add_argument("--ca", metavar="FILE", required=True, help="the federation's certificate, ca.crt")
    parser.add_argument("--key", metavar="FILE", required=True, help="this client's private key (unalike keys node)")
    parser.add_argument(
        "--data", metavar="FILE", required=True, help="an .npz or .safetensors file with x and y, or a table"
    )
    schema = "what the columns of a table mean, from `unalike data describe --schema FILE`"
    parser.add_argument("--schema", metavar="FILE", help=schema)
    unseen = (
        "words of a table that the schema does not have: an error, or zero in all features of their column [refuse]"
    )
    parser.add_argument("--unseen", choices=("refuse", "ignore"), default="refuse", help=unseen)
    parser.add_argument("--state", metavar="FOLDER", required=True, help="where this client's state is kept")
    parser.add_argument(
        "--test", metavar="X", type=float, default=0.0, help="share of the samples held out for testing"
    )
    parser.add_argument("--validation", metavar="X", type=float, default=0.0, help="share to choose a round by")
    parser.add_argument(
        "--public", metavar="FILE", help="the federation's public set: x and perhaps y, as the server has"
    )
    parser.add_argument(
        "--splits", metavar="TEXT", help="further splits of the training samples, as support=0.5,query=0.5"
    )
    peers = "the other clients' .pub files: rows are sealed for, and secure sums made with, these keys and no others"
    parser.add_argument("--peers", metavar="FOLDER", help=peers)
    common = "the key that all clients have in common and the server has not, for channels that encrypt"
    parser.add_argument("--common", metavar="FILE", help=f"{common} (unalike keys common)")
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu or cuda [auto]")
    parser.add_argument("--wait", metavar="SECONDS", type=float, default=float("inf"), help="for a server that is away")
    parser.add_argument("--once", action="store_true", help="leave when a run is over")
    policy.arguments(parser)


def main(args: argparse.Namespace) -> int:
    lifeline()
    from unalike.network.one_machine import flower
    from unalike.network.seal import Keyring

    rules = policy.policy_of(args)
    if rules.ask and not sys.stdin.isatty():
        raise UnalikeError("--ask waits for a yes at a terminal, and there is none: leave it out, or start it by hand.")
    schema = args.schema and Path(args.schema)
    data = read_client(Path(args.data), args.test, args.validation, schema, args.unseen)
    data = data.named_splits(seed=0, **read_shares(args.splits)) if args.splits else data
    data = with_public(data, Path(args.public)) if args.public else data
    say = (lambda text: None) if getattr(args, "quiet", False) else (lambda text: print(text, flush=True))
    check_address(args.server)
    keyring = Keyring(Path(args.key), args.peers and Path(args.peers))
    common = keys.read_common(Path(args.common)) if args.common else None
    client = Client(data, Path(args.state), rules, args.device, say, keyring, ask, common)
    try:
        ca = Path(args.ca).read_bytes()
    except OSError as error:
        raise UnalikeError(f"The certificate {args.ca} cannot be read: {error.strerror}.") from None
    check_certificate(ca, args.ca)
    link = flower().FlowerClient(args.server, ca, Path(args.key), Path(args.state) / "node", args.wait, say=say)
    # leaves in good order, so that the server hears of it at once
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    attend(link, client, args.once)
    return 0


def check_address(text: str) -> None:
    """Refuse an address that is not HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UnalikeError(f"The server is given as HOST:PORT, such as server.example.org:8443; got {text!r}.")


def check_certificate(ca: bytes, name: str) -> None:
    """Refuse a file that holds no certificate."""
    try:
        ssl.create_default_context(cadata=ca.decode("ascii"))
    # ssl.SSLError is an OSError
    except (OSError, ValueError):
        raise UnalikeError(f"{name} is no certificate: give the federation's ca.crt.") from None


def ask(words: str) -> bool:
    """Show a person what the server wants, and return the answer."""
    print(words, flush=True)
    try:
        return input("Is this all right? Say yes or no: ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def read_client(
    file: Path, test: float = 0.0, validation: float = 0.0, schema: Path | None = None, unseen: str = "ignore"
) -> Federation:
    """Read one client's data from its file: x, y, and optionally x_test, y_test, x_validation, y_validation or x_NAME,
    y_NAME for further splits; or a table, by the schema that all clients share. unseen: "refuse" or "ignore" words that
    the schema does not have."""
    if schema is not None:
        return _read_table(file, read_schema(schema), unseen).split_clients(test=test, validation=validation)
    if file.suffix not in SUFFIXES or not file.is_file():
        table = " For a table give --schema too." if file.suffix.lower() in (".csv", ".parquet", ".tsv") else ""
        raise UnalikeError(f"{file} must be an .npz or .safetensors file with x and y.{table}")
    # missing cells are filled before training, or refused then
    content = read_arrays(file, gaps=True)
    pair: Any = lambda suffix: [(content[f"x{suffix}"], content[f"y{suffix}"])] if f"x{suffix}" in content else None  # noqa: E731
    splits = {name: pair(f"_{name}") for name in split_names(content) if name not in SPLITS}
    data = Federation.from_arrays(
        pair(""), client_tests=pair("_test"), client_validations=pair("_validation"), client_splits=splits
    )
    return data.split_clients(test=test, validation=validation)


def with_public(data: Federation, file: Path) -> Federation:
    """Return a client's data with the public set from a file; its labels may have more classes than the client's."""
    x, y = read_public(file)
    classes = data.classes
    if y is not None and classes is not None and not y.is_floating_point() and len(y):
        classes = max(classes, int(y.max()) + 1)
    return data.replace(public=(x, y), classes=classes)


def read_shares(text: str) -> dict[str, float]:
    """Read the shares of further splits: support=0.5,query=0.5."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(share) for name, _, share in pairs}
    except ValueError:
        raise UnalikeError(f"--splits {text}: give shares by name, as support=0.5,query=0.5.") from None


def read_schema(file: Path) -> Schema:
    """Read a schema that `unalike data describe --schema FILE` wrote."""
    try:
        return Schema.from_plain(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise UnalikeError(f"The schema {file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise UnalikeError(
            f"{file} is no schema: `unalike data describe --table … --schema FILE` writes one."
        ) from None


def _read_table(file: Path, schema: Schema, unseen: str) -> Federation:
    x, y = encoded(schema, file, unseen=unseen)
    if y is None:
        raise UnalikeError(f"{file} has no column {schema.label!r}, which is to be learned.")
    classes = None if schema.label_names is None else len(schema.label_names)
    return Federation.from_arrays([(x, y)], classes=classes).replace(schema=schema)


if __name__ == "__main__":
    own = argparse.ArgumentParser(prog="python -m unalike.network.join")
    arguments(own)
    try:
        code = main(own.parse_args())
    except (Exception, KeyboardInterrupt) as error:
        code = complain(error)
    sys.exit(code)
