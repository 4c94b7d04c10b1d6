from unalike.network.join import __doc__, arguments, main

__all__ = ["__doc__", "arguments", "main"]
