"""Clocks that disagree: signatures carry the time, so a client whose clock is wrong is refused like a stranger."""

from __future__ import annotations

import datetime
import email.utils

# seconds by which a client's clock may be off, a little less than Flower allows
AHEAD, BEHIND = 4.0, 300.0


def clock_words(date: str | None, now: datetime.datetime) -> str:
    """Return what is wrong with this machine's clock, compared with the Date of the server's answer; "" if it is right
    or cannot be judged."""
    try:
        there = email.utils.parsedate_to_datetime(date or "")
        seconds = (now - there).total_seconds()
    except (TypeError, ValueError):
        return ""
    if -BEHIND <= seconds <= AHEAD:
        return ""
    way = "ahead of" if seconds > 0 else "behind"
    return f"This machine's clock is {abs(seconds):.0f} s {way} the server's: set both right."
