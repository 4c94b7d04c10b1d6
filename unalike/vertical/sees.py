"""Who sees what in a vertical run, from the fields that the method declares: who sends what to whom, and what it
reveals."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Sequence

from unalike.text import listed
from unalike.vertical.fields import ROWS, Field
from unalike.vertical.fields import answers as answers_of
from unalike.vertical.method import Vertical
from unalike.vertical.noise import Noise
from unalike.vertical.sums import is_summed

SUMMED = "masked: only the sum over hosts can be read"
KEYS = "public keys, from which hosts make the masks that cancel in sums"


@dc.dataclass(frozen=True)
class Sight:
    """One row: a field, its sender, its receiver, how it travels, what it reveals."""

    field: str
    sender: str
    receiver: str
    form: str
    tells: str


def who_sees(method: Vertical, guest: str, hosts: Sequence[str], noise: Noise, secure_sum: bool) -> list[Sight]:
    """Return the rows for a run."""
    people = {"guest": guest, "hosts": listed(list(hosts)) or "nobody", "coordinator": "the coordinator"}
    rows = [Sight("rows", guest, people["hosts"], "clear", ROWS.tells)]
    for name, field in method.sends.items():
        sender = people["guest"] if field.to != "guest" else people[_sender(method, name)]
        noised = f", noise {noise.noise:g} × {noise.clip:g}" if noise.noise and field.per_row else ""
        hidden = secure_sum and is_summed(field)
        form = SUMMED if hidden else field.form
        rows.append(Sight(name, sender, people[field.to], form + noised, _tells(field, hidden)))
    if secure_sum:
        rows.append(Sight("introductions", people["hosts"], f"each other, by {guest}", "clear", KEYS))
    return rows


def _sender(method: Vertical, name: str) -> str:
    """Return which party sends a field: the coordinator sends those of its own functions."""
    asked = [f for f in answers_of(method).values() if name in f.gives]  # type: ignore[attr-defined]
    by_third = method.coordinated and any(set(f.takes) <= {"closed"} for f in asked)  # type: ignore[attr-defined]
    return "coordinator" if by_third else "hosts"


def _tells(field: Field, hidden: bool) -> str:
    return (field.sum_tells if hidden else field.tells) or "what its name says"


def sight_text(rows: Sequence[Sight]) -> str:
    """Return the rows as lines of plain words."""
    return "\n".join(f"{row.field}: {row.sender} → {row.receiver}, {row.form}; tells {row.tells}" for row in rows)
