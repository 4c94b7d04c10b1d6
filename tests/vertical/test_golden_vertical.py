"""Vertical methods against golden numbers: directly, through bytes, and over real TLS sockets."""

import pytest
import torch
from goldens import golden
from torch import nn
from vertical_cases import furthest, golden_parties, listen, session_of, thetas

from unalike import vertical as v
from unalike.vertical import ciphers, psi

engines = pytest.mark.parametrize("engine", ["direct", "loopback", "tls"], indirect=True)


@engines
def test_logistic_regression_is_algorithm_2(engine):
    case = golden("vertical_lr")
    parties, hyper = golden_parties("vertical_lr"), case["hyper"]
    method = v.LogisticRegression(lr=hyper["lr"], l2=hyper["l2"])
    session = session_of(parties, method, engine, batch_size=hyper["batch_size"])
    for line in case["rounds"]:
        session.epoch(line["round"])
        assert furthest(thetas(parties), line["theta"]) < 1e-12
        assert abs(float(session.me.b) - line["b"]) < 1e-12
        z = method.scores(session.me, session.hosts, session.train)
        assert abs(float(session.loss.loss(z, session.me.y)) - line["loss"]) < 1e-12


@engines
def test_two_parties_without_a_coordinator(engine, monkeypatch):
    """Every number that crosses is the golden one, down to the integers under the encryption."""
    case = golden("vertical_two_party_lr")
    parties, hyper = golden_parties("vertical_two_party_lr", joined=True), case["hyper"]
    seen = {}
    seal, opened = ciphers.Paillier.seal, ciphers.Paillier.opened

    def spy_seal(self, values):
        seen["residue"] = [ciphers.paillier.fixed(x, 40) for x in values.flatten().tolist()]
        return seal(self, values)

    def spy_opened(self, sealed, count, who):
        seen["opened"] = opened(self, sealed, count, who)
        return seen["opened"]

    monkeypatch.setattr(ciphers.Paillier, "seal", spy_seal)
    monkeypatch.setattr(ciphers.Paillier, "opened", spy_opened)
    method = v.SealedLogistic(lr=hyper["lr"], bits=512)
    with pytest.warns(UserWarning, match="Labels are not protected"):
        session = session_of(parties, method, engine, batch_size=hyper["batch_size"], small_batches=True)
    host = parties.hosts[0]
    for line in case["steps"]:
        rows = torch.arange(line["first_row"], line["first_row"] + hyper["batch_size"])
        z_host = host.me.x[rows] @ host.me.theta
        assert furthest([z_host], [line["z_host"]]) < 1e-12
        method.step(session.me, session.hosts, rows)
        assert seen["residue"] == [int(r) for r in line["residue_integers"]]
        n, data, width = int(host.me.scheme.key.n), seen["opened"].numpy().tobytes(), host.me.scheme.plain_width
        sums = [
            (int.from_bytes(data[k * width : (k + 1) * width], "little") - m) % n for k, m in enumerate(host.me.mask)
        ]
        assert [s - n if 2 * s > n else s for s in sums] == [int(s) for s in line["gradient_sum_integers"]]
        assert furthest([host.me.theta], [line["theta_host"]]) < 1e-12
        assert furthest([torch.cat([session.me.theta[:, 0], session.me.b])], [line["theta_guest_and_b"]]) < 1e-12


@engines
def test_taylor_loss_with_a_coordinator(engine):
    case = golden("vertical_taylor_lr")
    parties, hyper = golden_parties("vertical_taylor_lr"), case["hyper"]
    method = v.HardyLogistic(lr=hyper["lr"], l2=hyper["l2"], intercept=False, bits=512)
    with pytest.warns(UserWarning, match="16 × 4"):
        session = session_of(parties, method, engine, small_batches=True)
    for plain, line in zip(case["rounds"], case["fixed_point_rounds"], strict=True):
        session.epoch(line["round"])
        assert furthest(thetas(parties), line["theta"]) < 1e-12
        assert furthest(thetas(parties), plain["theta"]) < 1e-7


@engines
def test_split_networks(engine):
    case = golden("vertical_split_nn")
    parties, hyper = golden_parties("vertical_split_nn"), case["hyper"]
    method = v.SplitNN(lr=hyper["lr"], cut=(3, 4, 2), top=3)
    session = session_of(parties, method, engine)
    nodes, start, end = [parties.guest, *parties.hosts], case["start"], case["end"]
    top = session.me.top
    with torch.no_grad():
        for node, w, b in zip(nodes, start["W"], start["b"], strict=True):
            node.me.net[0].weight.copy_(torch.tensor(w, dtype=torch.float64).T)
            node.me.net[0].bias.copy_(torch.tensor(b, dtype=torch.float64))
        for layer, w, b in ((top[0], "V1", "c1"), (top[2], "V2", "c2")):
            layer.weight.copy_(torch.tensor(start[w], dtype=torch.float64).T)
            layer.bias.copy_(torch.tensor(start[b], dtype=torch.float64))
    heard = [listen(node) for node in parties.hosts]
    for line in case["steps"]:
        rows = torch.arange(line["first_row"], line["first_row"] + hyper["batch_size"])
        cuts = [node.me.net(node.me.x[rows[:2]]) for node in nodes]
        assert furthest(cuts, line["cut_output_rows_0_1"]) < 1e-12
        assert abs(method.step(session.me, session.hosts, rows) - line["loss"]) < 1e-12
        slopes = [calls[-1][1]["slope"][:2] for calls in heard]
        assert furthest(slopes, line["cut_gradient_rows_0_1"][1:]) < 1e-12
    assert furthest([node.me.net[0].weight.T for node in nodes], end["W"]) < 1e-12
    assert furthest([node.me.net[0].bias for node in nodes], end["b"]) < 1e-12
    assert furthest([top[0].weight.T, top[0].bias, top[2].weight.T], [end["V1"], end["c1"], end["V2"]]) < 1e-12


def test_a_split_network_is_one_block_diagonal_network():
    parties = golden_parties("vertical_split_nn")
    session = session_of(parties, v.SplitNN(lr=0.3, cut=(3, 4, 2), top=5), batch_size=20)
    nodes = [parties.guest, *parties.hosts]
    x = torch.cat([node.me.x for node in nodes], 1)
    bottom = nn.Linear(x.shape[1], 9).double()
    top = nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    mask = torch.block_diag(*(torch.ones_like(node.me.net[0].weight) for node in nodes))
    with torch.no_grad():
        bottom.weight.copy_(torch.block_diag(*(node.me.net[0].weight for node in nodes)))
        bottom.bias.copy_(torch.cat([node.me.net[0].bias for node in nodes]))
    top.load_state_dict(session.me.top.state_dict())
    for number in (1, 2):
        session.epoch(number)
        for rows in session.batches(number):
            loss = nn.functional.cross_entropy(top(torch.tanh(bottom(x[rows]))), session.me.y[rows])
            parameters = [*bottom.parameters(), *top.parameters()]
            gradients = list(torch.autograd.grad(loss, parameters))
            gradients[0] = gradients[0] * mask
            session.me.descend(parameters, gradients, 0.3)
    whole = torch.block_diag(*(node.me.net[0].weight for node in nodes))
    assert float((whole - bottom.weight).detach().abs().max()) < 1e-12


@pytest.mark.parametrize("engine", ["loopback", "tls"], indirect=True)
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("reading", ["frozen", "exact"])
def test_fedbcd(order, reading, engine):
    case = golden("vertical_fedbcd")
    parties, hyper = golden_parties("vertical_fedbcd"), case["hyper"]
    method = v.FedBCD(lr=hyper["lr"], steps=hyper["Q"], order=order, reading=reading)
    session = session_of(parties, method, engine)
    for line in case["results"][f"{order}_{reading}"]:
        first = 30 * ((line["round"] - 1) % 2)
        method.step(session.me, session.hosts, torch.arange(first, first + 30))
        found = thetas(parties)
        assert furthest([torch.cat([found[0], session.me.b]), *found[1:]], line["theta"]) < 1e-12
        z = method.scores(session.me, session.hosts, session.train)
        assert abs(float(session.loss.loss(z, session.me.y)) - line["loss"]) < 1e-12


@pytest.mark.parametrize("reading", ["frozen", "exact"])
def test_fedbcd_with_one_step_is_algorithm_2(reading):
    ends = []
    for method in (v.FedBCD(lr=0.3, steps=1, reading=reading), v.LogisticRegression(lr=0.3)):
        parties = golden_parties("vertical_fedbcd")
        session_of(parties, method, batch_size=20).epoch(1)
        ends.append(torch.cat(thetas(parties)))
    assert float((ends[0] - ends[1]).abs().max()) < 1e-14


def test_private_set_intersection():
    case = golden("vertical_dh_psi")
    keys = {side: bytes.fromhex(key) for side, key in case["keys"].items()}
    for one, expected in case["points"].items():
        assert psi.point(one).hex() == expected
    once = {side: psi.masked([psi.point(one) for one in ids], keys[side]) for side, ids in case["ids"].items()}
    assert [p.hex() for p in once["a"]] == case["a_once"] and [p.hex() for p in once["b"]] == case["b_once"]
    twice = psi.masked(once["a"], keys["b"]), psi.masked(once["b"], keys["a"])
    assert [p.hex() for p in twice[0]] == case["a_twice"] and [p.hex() for p in twice[1]] == case["b_twice"]
    pairs = psi.matches(psi.as_tensor(twice[0]), psi.as_tensor(twice[1]), "b")
    assert sorted(case["ids"]["a"][mine] for mine, _ in pairs) == case["matched"]
    assert all(case["ids"]["a"][mine] == case["ids"]["b"][theirs] for mine, theirs in pairs)
