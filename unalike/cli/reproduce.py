from unalike.reproduce.command import __doc__ as __doc__
from unalike.reproduce.command import arguments, main

__all__ = ["arguments", "main"]
