"""Certificates for a server and keys for clients.

  unalike keys server keys/ --host server.example.org   on the server
  unalike keys node hospital-a                          on each client
  unalike keys common common.key --scheme paillier      on one client

The server's folder gets ca.key and server.key, which stay there, server.crt,
and ca.crt, which every client needs. A client's private key stays with it; its
.pub file goes to clients/ in the server's folder, under the client's name, and,
by another way than the server, to the other clients where these seal rows for
each other or share masks of secure sums (join --peers). A common key is for
sums under encryption (--channel paillier, ckks): one client makes it and gives
it to all others, never to the server (join --common).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from unalike.cli import show
from unalike.crypto.common_key import PAILLIER, SCHEMES
from unalike.crypto.paillier import BITS
from unalike.errors import UnalikeError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("server", "node", "common"), help="server, node or common")
    parser.add_argument("path", help="the server's folder, or the file of a client's private key or of a common key")
    parser.add_argument("--scheme", choices=SCHEMES, help="of a common key, as the run's channel has it [paillier]")
    parser.add_argument("--bits", type=int, metavar="N", help=f"of a common key for paillier [{BITS}]")
    parser.add_argument("--host", action="append", default=[], help="a name or address of the server; may be repeated")


def main(args: argparse.Namespace) -> int:
    from unalike.channel.stages import Paillier
    from unalike.network import keys

    path = Path(args.path)
    if args.what != "server" and args.host:
        raise UnalikeError("unalike keys: --host is for the server's certificate.")
    if args.what != "common" and (args.scheme or args.bits):
        raise UnalikeError("unalike keys: --scheme and --bits are for a common key.")
    scheme = args.scheme or PAILLIER
    if args.bits is not None and scheme != PAILLIER:
        raise UnalikeError(f"unalike keys: --bits is for a paillier key; one of {scheme} has always the same length.")
    if args.what == "server":
        keys.make_server(path, args.host)
        made = {"ca": str(path / "ca.crt"), "clients": str(path / "clients")}
        text = f"give {made['ca']} to every client; put their .pub files into {made['clients']}"
    elif args.what == "common":
        key = keys.make_common(path, scheme, Paillier(key=BITS if args.bits is None else args.bits).key)
        made = {"key": str(path), "scheme": key.scheme, "fingerprint": key.fingerprint.hex()[:16]}
        text = (
            f"give {path} to every client over a safe way, and never to the server: whoever has it, together with the "
            f"server, opens every client's reply (fingerprint {made['fingerprint']})"
        )
    else:
        made = {"key": str(path), "public": str(keys.make_node(path))}
        text = (
            f"keep {made['key']} here; give {made['public']} to whoever runs the server, and yourself to the other "
            "clients if these are to know it (join --peers)"
        )
    return show.answer(args, made, text)
