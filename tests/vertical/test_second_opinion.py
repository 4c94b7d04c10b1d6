"""Private set intersection beside openmined.psi, another program for the same protocol: the same people are found.

It is no part of the development packages: `pip install openmined-psi` where this is to run.
"""

import numpy as np
import pytest

from unalike.vertical import psi


@pytest.mark.parametrize("common", [0, 1, 130])
def test_the_same_people_are_found(common):
    other = pytest.importorskip("private_set_intersection.python")
    draw = np.random.default_rng(common)
    people = [f"person-{n} Ünal" for n in draw.permutation(10_000)[:400]]
    guest, host = people[: 200 + common], people[200:]
    draw.shuffle(host)
    assert ours(guest, host) == theirs(other, guest, host) == {*guest} & {*host}


def ours(guest, host):
    sides = [psi.Side(ids) for ids in (guest, host)]
    twice = [sides[1].twice(sides[0].once, "guest"), sides[0].twice(sides[1].once, "host")]
    pairs = psi.matches(*twice, "host")
    found = {guest[sides[0].order[mine]] for mine, _ in pairs}
    assert found == {host[sides[1].order[theirs]] for _, theirs in pairs}
    return found


def theirs(other, guest, host):
    server, client = other.server.CreateWithNewKey(True), other.client.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(0.0, len(guest), host, other.DataStructure.RAW)
    response = server.ProcessRequest(client.CreateRequest(guest))
    return {guest[k] for k in client.GetIntersection(setup, response)}
