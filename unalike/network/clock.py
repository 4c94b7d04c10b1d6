"""Clocks that do not agree: signatures carry the time, so a client whose clock is off is refused as a stranger is."""

from __future__ import annotations

import datetime
import email.utils

AHEAD, BEHIND = 4.0, 300.0  # seconds that a client's clock may be off, a little less than Flower allows


def clock_words(date: str | None, now: datetime.datetime) -> str:
    """Return what is wrong with this machine's clock beside the server's, as its answer's Date tells; nothing where it
    is right, or nobody can say."""
    try:
        there = email.utils.parsedate_to_datetime(date or "")
        seconds = (now - there).total_seconds()
    except (TypeError, ValueError):
        return ""
    if -BEHIND <= seconds <= AHEAD:
        return ""
    way = "ahead of" if seconds > 0 else "behind"
    return f"This machine's clock is {abs(seconds):.0f} s {way} the server's: set both right."
