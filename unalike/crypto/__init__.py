"""Schemes under which others can add. `secure_sum.py`: under masks that cancel, with `shamir.py`, `masks.py`,
`graph.py` and `ring.py` for its parts; no key opens everything. `paillier.py`, packed by `batchcrypt.py`, `ckks.py` and
`elgamal.py`: under encryption; who holds which key is decided by who uses them."""
