"""The small methods of `unalike.testing.toys`, by the name under which tests know them."""

from unalike.testing.toys import *  # noqa: F403
