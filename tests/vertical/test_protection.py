"""What protected runs hide: looked for in every message, and tried by attacks that succeed without protection."""

import random

import numpy as np
import pytest
import torch
from vertical_cases import cancer, listen, session_of

from unalike import vertical as v
from unalike.errors import UnalikeError
from unalike.vertical import ciphers
from unalike.vertical.fields import answers

SEALED = {"paillier": v.SealedLogistic(lr=0.3, bits=512), "coordinator": v.HardyLogistic(lr=0.3, bits=512)}


class FixedSecrets:
    """The functions of `secrets`, with the same draws every time: a verdict must not hang on the operating system's."""

    def __init__(self, seed=0):
        self.draw = random.Random(seed)

    def randbits(self, bits):
        return self.draw.getrandbits(bits)

    def randbelow(self, n):
        return self.draw.randrange(n)


@pytest.fixture(autouse=True)
def fixed_secrets(monkeypatch):
    for module in (ciphers, ciphers.paillier):
        monkeypatch.setattr(module, "secrets", FixedSecrets())


def small(rows=96, **options):
    return v.split(cancer(rows), {"clinic": 4, "lab": 3}, **options)


def area(scores, y):
    """The share of pairs that scores put in the right order."""
    high, low = scores[y == 1], scores[y == 0]
    return float(((high[:, None] > low[None]).double() + 0.5 * (high[:, None] == low[None]).double()).mean())


def labels_by_sign(parties, heard):
    """What a host finds out about labels from the residues that it is sent, by their sign."""
    y, found = parties.guest.me.y, torch.zeros(len(parties.guest.me.y), dtype=torch.float64)
    for header, sent, _ in heard:
        for name in ("d", "residue", "sealed_d"):
            if header.get("kind") == "call" and name in sent:
                numbers = sent[name].double().reshape(len(sent["rows"]), -1)
                found[sent["rows"]] = -numbers[:, 0] if name == "d" else numbers.mean(1)
    return area(found, y)


def test_residues_in_clear_tell_every_label_and_sealed_ones_none():
    parties = small()
    heard = listen(parties.hosts[0])
    v.fit(v.LogisticRegression(lr=0.3), parties, epochs=1, batch_size=48)
    assert labels_by_sign(parties, heard) == 1.0
    for method in SEALED.values():
        parties = small()
        heard = listen(parties.hosts[0])
        v.fit(method, parties, epochs=1, batch_size=48)
        assert 0.3 < labels_by_sign(parties, heard) < 0.7


def solved(x, gradient, y):
    """Find residues from a gradient Xᵀr by least squares, and how well they tell labels."""
    residues = torch.linalg.lstsq(x.T, gradient).solution[:, 0]
    return area(-residues, y)


def test_a_gradient_of_a_small_batch_tells_labels_and_of_a_large_one_hardly():
    """Which is why small batches are refused: a host solves Xᵀr = gradient for r."""
    x, y = cancer()
    x = (x - x.mean(0)) / x.std(0)
    draw = np.random.default_rng(0)
    noise = torch.from_numpy(draw.normal(size=(569, 12)))  # columns that say nothing of labels themselves
    found = {}
    for rows in (12, 24, 12 * 16):
        chosen = torch.from_numpy(draw.permutation(569)[:rows])
        residue = torch.sigmoid(torch.zeros(rows, 1)).double() - torch.from_numpy(y)[chosen, None]
        found[rows] = solved(noise[chosen], noise[chosen].T @ residue, torch.from_numpy(y)[chosen])
    assert found[12] == 1.0 and found[24] > 0.75 and found[192] < 0.7


def test_small_batches_are_refused_unless_asked_for():
    parties = small()
    with pytest.raises(UnalikeError, match=r"A batch of 40 rows .* 16 × 3 = 48 rows are needed; small_batches=True"):
        v.fit(SEALED["paillier"], parties, epochs=1, batch_size=40)
    with pytest.warns(UserWarning, match="Labels are not protected in this run"):
        v.fit(SEALED["paillier"], parties, epochs=1, batch_size=40, small_batches=True)
    session = session_of(small(100), SEALED["paillier"], batch_size=48)
    assert [len(rows) for rows in session.batches(1)] == [48, 52]  # a short rest joins the last batch


@pytest.mark.parametrize("name", SEALED)
def test_no_message_holds_a_column_a_label_or_a_plain_residue(name):
    """Every number of 8 bytes in every message is compared with what must not be there."""
    parties = small(test=0.0)
    heard = listen(parties.hosts[0])
    session = session_of(parties, SEALED[name], batch_size=48)
    others = listen(session._third.node) if session._third else []
    session.epoch(1)
    guest, host = parties.guest.me, parties.hosts[0].me
    z = torch.cat([guest.x, host.x], 1)
    secret = {"columns of the guest": guest.x, "columns of the host": host.x, "labels": 2 * guest.y.double() - 1}
    residues = torch.stack([torch.sigmoid(torch.zeros(len(z))).double() - guest.y, 0.5 * (0.5 - guest.y)])
    secret["residues"] = residues[residues != 0]
    for header, sent, given in [*heard, *others]:
        if header.get("kind") != "call":
            continue
        for field, value in {**sent, **given}.items():
            if field in ("rows", "z"):
                continue
            plain = value.numpy().tobytes()
            for what, numbers in secret.items():
                found = sum(plain.count(np.float64(x).tobytes()) for x in numbers.flatten().tolist() if x)
                assert found == 0, f"{field} holds {what}"
            assert value.dtype == torch.uint8 and field in SEALED[name].sends
    zs = [given["z"] for _, _, given in heard if "z" in given]
    assert bool(zs) == (name == "paillier")  # in Hardy's way no training row's share is seen


def test_what_is_opened_is_uniform_and_says_nothing_of_the_gradient(monkeypatch):
    """The same gradient twice is opened as two numbers that have nothing in common."""
    scheme = ciphers.made("paillier", 512, "short")
    other = ciphers.taken("paillier", scheme.public(), 512, "short")
    sealed, x = scheme.seal(torch.ones(8, 1).double()), torch.ones(8, 2).double()
    opened = [scheme.opened(other.products(sealed, x, 1)[0], 2, "lab") for _ in range(2)]
    n, width = int(scheme.key.n), scheme.plain_width
    numbers = [
        int.from_bytes(o[k * width : (k + 1) * width].numpy().tobytes(), "little") / n for o in opened for k in (0, 1)
    ]
    assert len(set(numbers)) == 4 and min(numbers) > 2**-40  # 8 in fixed point is far smaller


def test_the_guest_s_part_is_a_fresh_encryption():
    """A host knows its own noise: were the guest's part added without new noise, a host could read it off."""
    parties = small()
    heard = listen(parties.hosts[0])
    session = session_of(parties, SEALED["coordinator"], batch_size=48)
    session.epoch(1)
    key = parties.hosts[0].me.scheme.key
    calls = {header["function"]: (sent, given) for header, sent, given in heard if header.get("kind") == "call"}
    own = key.ciphers_from_bytes(calls["sealed_share"][1]["sealed_z"].numpy().tobytes(), 48)
    total = key.ciphers_from_bytes(calls["gradient"][0]["sealed_d"].numpy().tobytes(), 48)
    for mine, both in zip(own, total, strict=True):
        rest = both * pow(mine, -1, int(key.squared)) % key.squared
        assert rest % key.n != 1  # a bare 1 + m n would be the guest's number in clear


def test_a_coordinated_host_refuses_to_tell_its_share_of_training_rows():
    parties = small(test=0.25)
    session = session_of(parties, SEALED["coordinator"])
    with pytest.raises(UnalikeError, match="lab does not tell its share of training rows"):
        session.hosts.call(session.method.partial, rows=session.train[:3])
    assert session.hosts.call(session.method.partial, rows=session.test[:3]).sum("z").shape == (3, 1)


def test_who_sees_what_comes_from_the_declarations():
    for method, words in (
        (v.LogisticRegression(), ["d: clinic → lab, clear; tells the labels"]),
        (
            SEALED["paillier"],
            ["residue: clinic → lab, sealed; tells nothing without", "slope: lab → clinic, sealed and masked"],
        ),
        (
            SEALED["coordinator"],
            ["closed: clinic → the coordinator, sealed and masked", "open: the coordinator → clinic"],
        ),
        (v.FedBCD(reading="exact"), ["label: clinic → lab, clear; tells the labels themselves"]),
        (v.SplitNN(), ["slope: clinic → lab, clear; tells labels, by its direction"]),
    ):
        parties = small()
        session = session_of(parties, method, epochs=1)
        text = v.sight_text(session.sees)
        for line in words:
            assert line in text
        fields = {name for function in answers(method).values() for name in (*function.takes, *function.gives)}
        assert {row.field for row in session.sees} >= fields & {"rows", *method.sends}
    assert "label" not in v.FedBCD().sends
