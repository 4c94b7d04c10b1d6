"""What a client refuses of a server that wants to isolate its reply in a sum."""

import pytest
import torch
from small import refused

from unalike.channel import SecureSum
from unalike.client.secure import PRESENT, SecureClient, bound, bound_at_client
from unalike.messages import wire

SHARED = wire.encode({"kind": "request", "function": "client"}, {"w": torch.zeros(2)})
ONE = torch.ones((), dtype=torch.float64)


def parts(header=None, **own):
    return SHARED, wire.encode({"run": "r", "acknowledged": 1, **(header or {})}, {PRESENT: torch.arange(3), **own})


@pytest.mark.parametrize("name", ["w", ":largest", "center", "strength"])
def test_values_for_one_client_alone_are_refused(name):
    assert bound(parts(**{name: ONE})) == bound(parts(**{name: 1e300 * ONE}))  # so nothing else would show it
    with refused(f"brings '{name}' for this client alone"):
        bound_at_client(parts(**{name: ONE}))


@pytest.mark.parametrize("name", ["function", "trained", "round", "recipe"])
def test_a_header_for_one_client_alone_is_refused(name):
    with refused(f"brings '{name}' for this client alone"):
        bound_at_client(parts({name: "other"}))


def test_rows_that_a_method_declares_are_taken():
    assert bound_at_client(parts()) == bound(parts()) != bound_at_client(parts(share=ONE), ["share"])
    for name in ("w", ":largest"):
        with refused(f"brings '{name}' for this client alone"):
            bound_at_client(parts(**{name: ONE}), ["share", name])


@pytest.mark.parametrize(
    ("second", "fits"),
    [
        ([0, 1, 2, 3], True),
        ([0, 1, 2], False),
        ([0, 1, 2, 5, 6], False),
        ([0, 4, 5, 6], True),
        ([0, 1, 4, 5, 6], False),
    ],
)
def test_two_sums_differ_by_nobody_or_by_many_on_either_side(second, fits):
    """Clients 5 and 6 may work with the server and take themselves out of the second sum."""
    client = SecureClient("r", 0, SecureSum())
    client._when = (0, 0)
    client._open_once([0, 1, 2, 3])
    if fits:
        client._open_once(second)
    else:
        with refused("whose difference"):
            client._open_once(second)
