"""Schemes under which others can add. `paillier.py`: under encryption; who holds which key is decided by who uses it.
`secure_sum.py`: under masks that cancel, with `shamir.py`, `masks.py`, `graph.py` and `ring.py` for its parts."""
