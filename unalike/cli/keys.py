"""Certificates for a server and keys for clients.

  unalike keys server keys/ --host server.example.org   on the server
  unalike keys node hospital-a                          on each client

The server's folder gets ca.key and server.key, which stay there, server.crt,
and ca.crt, which every client needs. A client's private key stays with it; its
.pub file goes to clients/ in the server's folder, under the client's name, and
to the other clients where these seal rows for each other (join --peers).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from unalike.cli import show
from unalike.errors import UnalikeError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("server", "node"), help="server or node")
    parser.add_argument("path", help="the server's folder, or the file of a client's private key")
    parser.add_argument("--host", action="append", default=[], help="a name or address of the server; may be repeated")


def main(args: argparse.Namespace) -> int:
    from unalike.network import keys

    path = Path(args.path)
    if args.what == "node" and args.host:
        raise UnalikeError("unalike keys: --host is for the server's certificate.")
    if args.what == "server":
        keys.make_server(path, args.host)
        made = {"ca": str(path / "ca.crt"), "clients": str(path / "clients")}
        text = f"give {made['ca']} to every client; put their .pub files into {made['clients']}"
    else:
        made = {"key": str(path), "public": str(keys.make_node(path))}
        text = f"keep {made['key']} here; give {made['public']} to whoever runs the server"
    return show.answer(args, made, text)
