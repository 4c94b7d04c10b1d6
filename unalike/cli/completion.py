"""Print the completion script for a shell.

unalike completion bash > ~/.local/share/bash-completion/completions/unalike
unalike completion zsh > ~/.zsh/completions/_unalike
unalike completion fish > ~/.config/fish/completions/unalike.fish
"""

from __future__ import annotations

import argparse

import shtab

from unalike.cli import show

SHELLS = ("bash", "zsh", "fish", "tcsh")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=[s for s in SHELLS if s in shtab.SUPPORTED_SHELLS])


def main(args: argparse.Namespace) -> int:
    from unalike.cli import parser

    script = shtab.complete(parser(), args.shell)
    return show.answer(args, {"shell": args.shell, "script": script}, script)
