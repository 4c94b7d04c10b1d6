"""unalike as a plain Flower app."""
