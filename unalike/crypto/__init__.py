"""Schemes under which others can add: `paillier.py`. Who holds which key is decided by who uses them."""
