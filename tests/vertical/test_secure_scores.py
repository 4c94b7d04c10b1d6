"""Secure sums of the hosts' scores: the guest reads the sum, and no message holds a single host's."""

import random
import types

import numpy as np
import pytest
import torch
from goldens import golden
from vertical_cases import bank_and_shop, cancer, furthest, golden_parties, listen, session_of, thetas, write

from unalike import vertical as v
from unalike.errors import UnalikeError
from unalike.network import keys
from unalike.network.seal import Keyring
from unalike.vertical import sums
from unalike.vertical.links import Direct, introduced
from unalike.vertical.node import Node
from unalike.vertical.tables import read_table

LR = v.LogisticRegression(lr=0.5)


@pytest.fixture(autouse=True)
def fixed_keys(monkeypatch):
    """The same keys in every run: a verdict must not hang on the operating system's draws."""
    monkeypatch.setattr(sums, "os", types.SimpleNamespace(urandom=random.Random(0).randbytes))


def three(rows=96, **options):
    return v.split(cancer(rows), {"clinic": 4, "lab": 3, "pharmacy": 3}, **options)


@pytest.mark.parametrize("engine", ["loopback", "tls"], indirect=True)
def test_golden_numbers_by_secure_sums(engine):
    case = golden("vertical_lr")
    parties, hyper = golden_parties("vertical_lr"), case["hyper"]
    method = v.LogisticRegression(lr=hyper["lr"], l2=hyper["l2"])
    session = session_of(parties, method, engine, batch_size=hyper["batch_size"], secure_sum=True)
    for line in case["rounds"]:
        session.epoch(line["round"])
        assert furthest(thetas(parties), line["theta"]) < 1e-12


def replies(heard):
    return [(sent["rows"], given["z"]) for _, sent, given in heard if "z" in given]


def test_no_message_holds_a_single_host_s_scores(monkeypatch):
    """What each host sends is looked at beside its true scores, by every way of reading it that a guest has."""
    parties = three()
    heard, true = [listen(node) for node in parties.hosts], [[], []]
    coded = sums.coded
    monkeypatch.setattr(sums, "coded", lambda value, hosts: coded(true_of(value), hosts))

    def true_of(value):
        true[len(true[0]) > len(true[1])].append(value.clone())  # the hosts answer in turns
        return value

    run = v.fit(LR, parties, epochs=3, batch_size=32, secure_sum=True)
    for host, own in zip(heard, true, strict=True):
        sent = [z for _, z in replies(host)]
        assert len(sent) == len(own) == 9 and all(z.dtype == torch.int64 for z in sent)
        words, scores = torch.cat(sent).flatten(), torch.cat(own).flatten()
        codes = torch.round(scores * 2.0**44).long()
        assert not (words == codes).any() and not set(words.tolist()) & set(codes.tolist())
        assert (words - codes).unique().numel() == len(words)  # no mask was used twice
        shares = words.double() / 2.0**63
        assert abs(float(np.corrcoef(shares, scores)[0, 1])) < 0.15  # of 288 numbers: 0.06 is usual
        assert 0.5 < float(shares.std()) < 0.65 and abs(float(shares.mean())) < 0.1  # as uniform ones: 0.577, 0
    together = [a + b for (_, a), (_, b) in zip(*map(replies, heard), strict=True)]
    expected = [a + b for a, b in zip(*true, strict=True)]
    assert max(float((t.double() / 2.0**44 - e).abs().max()) for t, e in zip(together, expected, strict=True)) < 1e-12
    assert run.history[-1]["bytes_up"] == 2 * 8 * 96


def test_without_secure_sums_every_host_s_scores_are_read():
    parties = three()
    heard = listen(parties.hosts[0])
    v.fit(LR, parties, epochs=1)
    assert replies(heard)[0][1].dtype == torch.float64


def told(run):
    return v.sight_text(run.sees)


def test_who_sees_what_says_so():
    secure = told(v.fit(LR, three(), epochs=1, secure_sum=True))
    assert (
        "z: lab and pharmacy → clinic, masked: only the sum over hosts can be read; tells the sum of the hosts'"
        in secure
    )
    assert "introductions: lab and pharmacy → each other, by clinic, clear; tells public keys" in secure
    plain = told(v.fit(LR, three(), epochs=1))
    assert "clear; tells each host's share of every row's score" in plain and "introductions" not in plain


@pytest.mark.parametrize(
    "method", [LR, v.SealedLogistic(lr=0.5, bits=512), v.HardyLogistic(lr=0.5, bits=512)], ids=lambda m: m.name
)
def test_the_same_is_learned_and_predicted(method):
    x, y = cancer(96)
    x = (x - x.mean(0)) / x.std(0)
    arrays = {"clinic": x[:, :4], "lab": x[:, 4:7], "pharmacy": x[:, 7:10]}
    found = []
    for secure_sum in (False, True):
        parties = v.Parties.from_arrays(arrays, y, test=0.2)
        run = v.fit(method, parties, epochs=2, secure_sum=secure_sum)
        found.append((torch.cat(thetas(parties)), torch.from_numpy(run.predict(arrays).probabilities)))
    for plain, secure in zip(*found, strict=True):
        assert float((plain - secure).abs().max()) < 1e-11


def hosts_of(parties):
    """Two hosts that are set up for secure sums and know each other."""
    session = session_of(parties, LR, secure_sum=True)
    return session, parties.hosts


def asked(node, rows, step=0):
    return node.handle({"kind": "call", "function": "partial", "epoch": 1, "step": step}, {"rows": rows})[1]["z"]


def test_masks_cancel_only_where_all_are_asked_the_same():
    rows = torch.arange(20)
    for second, first_step, second_step in ((rows + 1, 0, 0), (rows, 0, 1)):
        _, (lab, pharmacy) = hosts_of(three())
        total = sums.opened([asked(lab, rows, first_step), asked(pharmacy, second, second_step)])
        assert float(total.abs().min()) > 0  # scores are 0 before the first step; these are noise of some 2^18
        assert float(total.abs().median()) > 1000
    _, (lab, pharmacy) = hosts_of(three())
    assert float(sums.opened([asked(lab, rows), asked(pharmacy, rows)]).abs().max()) == 0
    asked(lab, rows)  # once more at one host alone: from now on nothing cancels
    assert float(sums.opened([asked(lab, rows), asked(pharmacy, rows)]).abs().median()) > 1000


@pytest.mark.parametrize(
    ("parts", "method", "settings", "line"),
    [
        ({"clinic": 4, "lab": 3}, LR, {}, "needs two hosts or more"),
        ({"clinic": 4, "lab": 3, "pharmacy": 3}, v.SplitNN(), {}, "split-network needs every host's own numbers"),
        ({"clinic": 4, "lab": 3, "pharmacy": 3}, v.FedBCD(), {}, "fedbcd needs every host's own numbers"),
        ({"clinic": 4, "lab": 3, "pharmacy": 3}, LR, {"fallback": "zero"}, "take refuse or alone"),
        ({"clinic": 4, "lab": 3, "pharmacy": 3}, LR, {"unmatched": "mask"}, "with secure_sum, unmatched='drop'"),
    ],
)
def test_sums_that_would_hide_nothing_are_refused(parts, method, settings, line):
    unmatched = settings.pop("unmatched", "drop")
    parties = v.split(cancer(60), parts, matched=0.8, unmatched=unmatched)
    with pytest.raises(UnalikeError, match=line):
        v.fit(method, parties, epochs=1, secure_sum=True, **settings)


def test_hosts_keep_to_it_whatever_the_guest_asks():
    parties = three()
    session, (lab, _) = hosts_of(parties)
    lab.me.present[5] = False
    with pytest.raises(UnalikeError, match="lab lacks some of these rows, and a sum would tell another host's own"):
        asked(lab, torch.arange(10))
    lab.me.present[5] = True
    own = lab.ready_for_sums()["introduction"]
    with pytest.raises(UnalikeError, match="before it named the hosts"):
        asked(lab, torch.arange(3))
    for wrong in ([own], [own, own], None, [own, {"key": "00"}], [own, {**own, "key": "00" * 31}], [own, {}, own]):
        with pytest.raises(UnalikeError, match="the guest"):
            lab.handle({"kind": "introductions", "introductions": wrong}, {})
    with pytest.raises(UnalikeError, match=r"a score is 1e\+06, and secure sums take numbers below 2\.62e\+05"):
        sums.coded(torch.tensor([[1e6]]), 2)
    only = Node(lab.table, sums_only=True)
    only.positions = lab.positions
    base = {"kind": "setup", "method": "logistic", "settings": {}, "outputs": 1, "seed": 0, "index": 1, "parties": 3}
    with pytest.raises(UnalikeError, match="takes part only where the guest reads sums over hosts"):
        only.handle({**base, "scale": "none"}, {"train": session.train})
    with pytest.raises(UnalikeError, match="takes part only where the guest reads sums over hosts"):
        only.handle({"kind": "agree", "method": "logistic", "settings": {}}, {})
    with pytest.raises(UnalikeError, match="secure sums need two hosts or more"):
        only.handle({**base, "scale": "none", "parties": 2, "secure_sum": True}, {"train": session.train})
    assert "introduction" in only.handle({**base, "scale": "none", "secure_sum": True}, {"train": session.train})[0]


def test_a_guest_that_puts_its_own_key_between_two_hosts_is_refused(tmp_path):
    """Hosts that have each other's .pub files take no other's word; without them they take the guest's."""
    peers = tmp_path / "peers"
    peers.mkdir()
    for name in ("lab", "pharmacy", "clinic"):
        public = keys.make_node(tmp_path / name)
        if name != "clinic":
            public.rename(peers / f"{name}.pub")
    lab, pharmacy = (sums.Masks(2, Keyring(tmp_path / name, peers)) for name in ("lab", "pharmacy"))
    lab.meet([pharmacy.introduction(), lab.introduction()])
    own = sums.Masks(2, Keyring(tmp_path / "clinic"))
    with pytest.raises(UnalikeError, match="that this client was not given"):
        lab.meet([lab.introduction(), own.introduction()])
    stolen = {**pharmacy.introduction(), "key": own.public.hex()}
    with pytest.raises(UnalikeError, match="that the other host did not sign"):
        lab.meet([lab.introduction(), stolen])
    trusting = sums.Masks(2, Keyring(tmp_path / "lab"))
    trusting.meet([trusting.introduction(), own.introduction()])


def test_prediction_with_a_host_away_goes_by_the_guest_alone(tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    rows = [row.split(",") for row in shop.read_text().split()[1:]]
    depot = write(
        tmp_path / "depot.csv", {"customer": [r[0] for r in rows], "stock": [k % 7 for k in range(len(rows))]}
    )
    tables = {"bank": bank, "shop": shop, "depot": depot}
    runs = {}
    for secure_sum in (False, True):
        parties = v.Parties.from_tables(tables, id="customer", label=("bank", "default"))
        runs[secure_sum] = v.fit(LR, parties, epochs=2, fallback="alone", secure_sum=secure_sum)
    for given in (tables, {"bank": bank, "shop": shop}):
        plain, secure = (run.predict(given).probabilities for run in runs.values())
        assert np.abs(plain - secure).max() < 1e-12
    nodes = {name: Node(read_table(name, tables[name], "customer")) for name in ("shop", "depot")}
    for name, node in nodes.items():
        node.positions = torch.arange(len(node.table))
        node.adopt(runs[True].shares[name])
    links = [Direct(node) for node in nodes.values()]
    introduced(links, [node.ready_for_sums() for node in nodes.values()])
    alone = nodes["shop"].handle(
        {"kind": "call", "function": "partial", "epoch": 0, "step": 0}, {"rows": torch.arange(4)}
    )
    assert alone[1]["z"].dtype == torch.int64  # its part of the model remembers that single scores are not told
