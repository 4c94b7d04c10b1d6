"""Who takes part, and the server's noise, under a channel that protects: no function of the seed that clients know."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_network_messages import Direct, people, served, simulated, tables

from unalike import draws, report
from unalike.channel import Passage
from unalike.run.run import SECRET, Run
from unalike.run.sampling import draw

__all__ = ["people"]  # a fixture
HALF = {"clients_per_round": 0.5}
SIZES = np.array([8, 4, 12, 10])


class Heard(Direct):
    """Keeps every byte that goes to a client."""

    def __init__(self, people):
        super().__init__(people)
        self.bytes = b""

    def exchange(self, requests, seconds):
        self.bytes += b"".join(part for parts in requests.values() for part in parts)
        yield from super().exchange(requests, seconds)

    def cohorts(self):
        """Who was asked in each round."""
        found = {}
        for client, header in self.asked:
            if header["kind"] == "request":
                found.setdefault(header["round"], []).append(client)
        return [sorted(found[t]) for t in sorted(found)]


@pytest.fixture
def private(monkeypatch):
    monkeypatch.setattr(Run, "private", property(lambda self: True))


def known(run, rounds):
    """The cohorts of a seed, or of a secret."""
    return [draw(run.sampling, run.seed, t, SIZES).tolist() for t in range(rounds)]


def secret_of(run):
    return bytes.fromhex(run.server.values[SECRET])


def test_clients_cannot_know_a_private_cohort(people, private):
    link, other = Heard(people), Heard(people)
    run = served(tables(rounds=12, run=HALF), link)
    assert link.cohorts() != known(run, 12)
    assert link.cohorts() == [draw(run.sampling, secret_of(run), t, SIZES).tolist() for t in range(12)]
    assert len(secret_of(run)) == 32
    served(tables(rounds=12, run={**HALF, "seed": 1}), other)
    assert other.cohorts() != link.cohorts()


def test_the_secret_is_the_servers_alone(people, private, tmp_path, capsys):
    link, said = Heard(people), []
    run = served(tables(rounds=2, run={**HALF, "folder": str(tmp_path / "run")}), link, said)
    report.write(tmp_path / "run")
    secret = secret_of(run)
    forms = [form.encode() for form in (secret.hex(), str(int.from_bytes(secret, "big")))] + [secret]
    holds = lambda content: any(form in content for form in forms)  # noqa: E731
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"config.toml", "rounds.jsonl", "model.unalike"}
    holders = {file.name for file in files if holds(file.read_bytes())}
    assert holders == {"manifest.json", "manifest-000001.json"}  # the last two checkpoints
    printed = "".join([*said, *capsys.readouterr(), repr(run), repr(run.summary()), repr(run.history)])
    assert not holds(link.bytes) and not holds(printed.encode())


def test_a_run_that_goes_on_has_the_same_secret(people, private, tmp_path):
    at = {**HALF, "folder": str(tmp_path / "run")}
    run = served(tables(rounds=2, run=at), Heard(people))
    link = Heard(people)
    again = served(tables(rounds=8, run=at), link, resume=True)
    assert secret_of(again) == secret_of(run)
    assert link.cohorts() == [draw(run.sampling, secret_of(run), t, SIZES).tolist() for t in range(2, 8)]


def test_without_protection_and_in_a_simulation_nothing_changes(people, monkeypatch):
    link = Heard(people)
    run = served(tables(rounds=6, run=HALF), link)
    assert link.cohorts() == known(run, 6) and SECRET not in run.server.values
    open_run = simulated(tables(rounds=6, run=HALF))
    monkeypatch.setattr(Run, "private", property(lambda self: True))
    run = simulated(tables(rounds=6, run=HALF))
    assert SECRET not in run.server.values and torch.equal(run.server.w, open_run.server.w)


def test_generators_of_secrets_differ_by_secret_and_parts():
    one, two = bytes(32), bytes(31) + b"\1"
    seen = [draws.generator(s, *parts).random() for s in (one, two) for parts in (("a", 0), ("a", 1), ("b", 0), ("a",))]
    assert len(set(seen)) == 8 and draws.generator(one, "a", 0).random() == seen[0]
    assert draws.new_secret() != draws.new_secret() and len(draws.new_secret()) == 32


def noise(secret):
    """What the server draws for a channel in one exchange."""
    channel = SimpleNamespace(told=lambda values: {}, extra=())
    passage = Passage(channel, None, {}, lambda ids: None, 7, (0, 0), 1.0, secret)
    return passage._normal("noise", (1000,), torch.zeros(1))


def test_noise_of_the_server_is_secret_too():
    assert torch.equal(noise(False), noise(False))  # a simulation can be repeated
    one, two = noise(True), noise(True)
    assert one.dtype == torch.float64 and not torch.isin(one, two).any() and not torch.isin(one, noise(False)).any()
    assert float(one.std()) == pytest.approx(1, abs=0.15)
