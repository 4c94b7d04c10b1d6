"""`python -m unalike` is the command `unalike`."""

import sys

from unalike.cli import main

if __name__ == "__main__":
    sys.exit(main())
