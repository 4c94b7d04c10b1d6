"""Schemes for adding numbers that nobody may see singly. `secure_sum.py`: masks that cancel, with `shamir.py`,
`masks.py`, `graph.py` and `ring.py` as its parts; no key opens everything. `paillier.py`, packed by `batchcrypt.py`,
`ckks.py` and `elgamal.py`: encryption; their users decide who holds which key."""
