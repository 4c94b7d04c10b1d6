"""Options that several model builders take, and their check: an impossible size is refused before torch sees it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated

from unalike.errors import UnalikeError
from unalike.settings.knobs import Knob

Features = Annotated[int, Knob("numbers in a sample; found in the data")]
Classes = Annotated[int, Knob("how many classes; found in the data")]
Channels = Annotated[int, Knob("colours of a picture; found in the data")]
Size = Annotated[int, Knob("pixels along a picture's side; found in the data")]
Widths = Annotated[Sequence[int], Knob("widths of the hidden layers")]
Width = Annotated[int, Knob("how wide the model is")]
Norm = Annotated[str, Knob("how activations are normalised: group, batch or none")]
Vocabulary = Annotated[int, Knob("how many tokens there are")]
Embedding = Annotated[int, Knob("numbers that a token becomes")]
Hidden = Annotated[int, Knob("numbers in an LSTM's state")]
Layers = Annotated[int, Knob("LSTM layers")]


def whole(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int, or raise an error that says what `name` must be."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    # True counts as 1 in Python; as a number of classes it is a slip.
    if number is None or isinstance(value, bool) or number < least:
        raise UnalikeError(f"{name}={value!r} was given; it must be a whole number of at least {least}.")
    return number
