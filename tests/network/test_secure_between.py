"""Secure sums between machines: the same run as simulated, whoever is lost, killed or lies."""

import pytest
from test_network_messages import KEYS, Direct, data, own, same_as_simulated, tables

import unalike as ua
from unalike.messages import wire
from unalike.network import keys
from unalike.network.client import Client
from unalike.network.policy import Policy
from unalike.network.seal import Keyring


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Signing keys of four clients, and the folder of their public halves."""
    folder = tmp_path_factory.mktemp("keys")
    return [keys.make_node(folder / f"client-{k}") for k in range(4)]


@pytest.fixture
def people(tmp_path, pairs, monkeypatch):
    fed, rules = data(), Policy.open(methods=tuple(ua.METHODS), repeatable=True)
    public = {name: file.read_bytes() for name, file in zip(KEYS, pairs, strict=True)}
    monkeypatch.setattr("test_network_messages.KEYS", public)
    return [person(fed, k, tmp_path, rules, pairs) for k in range(4)]


def person(fed, k, folder, rules, pairs):
    ring = Keyring(pairs[k].with_suffix(""), pairs[k].parent)
    return Client(own(fed, k), folder / f"site-{k}", rules, sealer=ring)


class Counting(Direct):
    """Counts the bytes of every stage of a sum; keys travel once in a run and are not counted."""

    def exchange(self, requests, seconds):
        for k, answer in super().exchange(requests, seconds):
            header = wire.decode(requests[k][0])[0]
            if header["kind"] == "sum" and header["stage"] != "key":
                self.passed["down"] += sum(wire.payload(wire.decode(part)[1]) for part in requests[k])
                self.passed["up"] += wire.payload(wire.decode(answer)[1])
            yield k, answer


def settings_of(method="fedavg", channel="secure-sum:0.6", rounds=2, **run):
    return tables(method, rounds, run={"channel": channel, "evaluate_clients": "all", **run})


RUNS = {"fixed point": ("scaffold", "secure-sum"), "codes": ("fedavg", "quantise:8:0.1,secure-sum:agree=true")}


@pytest.mark.parametrize("name", RUNS)
def test_a_federation_computes_what_a_simulation_does(name, people):
    same_as_simulated(settings_of(*RUNS[name]), Counting(people))
