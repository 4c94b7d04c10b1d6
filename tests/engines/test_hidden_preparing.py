"""Features prepared from sums that nobody sees single ones of: the same bits as in the open."""

import math

import numpy as np
import pytest
import torch
from small import refused
from unprepared import SIZES, federation

import unalike as ua
from unalike import config
from unalike.channel import Ckks, Paillier, SecureSum
from unalike.client.preparing import KIND, LIMB, LIMBS, limbs, slots_of, unlimbed, widths_of
from unalike.crypto.secure_sum import Void
from unalike.data.preparation import Recipe
from unalike.engines.hidden_calls import hidden_sums
from unalike.engines.preparing import RUN, SUMS, HiddenPreparation, _InProcess, _read, by_hidden_messages
from unalike.messages import wire


@pytest.mark.parametrize("stage", [SecureSum(), Paillier(1024), Ckks("symmetric")], ids=str)
def test_hidden_sums_make_the_same_preparation_bit_for_bit(stage):
    fed = federation()
    assert by_hidden_messages(fed, stage).preparation == fed.prepared().preparation


def test_of_classes_and_without_a_recipe():
    fed = federation(target=False)
    assert by_hidden_messages(fed, SecureSum()).preparation == fed.prepared().preparation
    plain = fed.replace(recipe=None)
    assert by_hidden_messages(plain, SecureSum()) is plain


def test_limbs_add_up_exactly():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(50, 40)) * 10.0 ** rng.integers(-12, 60, (50, 40)))
    rows[0], rows[1] = 1e77, -1e77  # cancels but for the small ones
    codes = sum(limbs(row) for row in rows)
    assert unlimbed(codes).tolist() == [math.fsum(column) for column in rows.T.tolist()]
    assert int(limbs(rows[0]).abs().max()) < 1 << LIMB and limbs(rows[0]).shape == (40 * LIMBS,)
    assert [slot.bits for slot in slots_of({"sum": 3}, 0)] == [LIMB + 1, LIMB + 1, LIMB + 1]
    small = torch.tensor([1e-40, 1.23456789e-19, -(1e-45**2)], dtype=torch.float64)  # and squares of small features
    assert unlimbed(limbs(small)).tolist() == small.tolist()


@pytest.mark.parametrize("value", [2.0**293, -1e300, math.inf, math.nan])
def test_numbers_beyond_the_limbs_are_refused_not_cut_off(value):
    with refused("too large to be added, or no number"):
        limbs(torch.tensor([1.0, value], dtype=torch.float64))


@pytest.mark.parametrize("stage", [SecureSum(), Ckks("symmetric")], ids=str)
def test_nothing_but_hidden_sums_leaves_a_client(stage):
    """Sums in the clear would be the same whenever they are asked for; hidden ones never are."""
    fed, sizes = federation(), dict(enumerate(SIZES))

    class Listening(_InProcess):
        def ask(self, requests):
            for client, answer in super().ask(requests):
                header, parts = wire.decode(answer)
                if "stage" not in header:
                    assert set(header) == {"format", "kind", "version", "samples"}
                    seen.extend(bytes(part.numpy()) for name, part in sorted(parts.items()) if name.startswith("sum:"))
                yield client, answer

    seen = []
    for _ in range(2):
        HiddenPreparation(fed.recipe, stage, Listening(fed, stage), sizes, 1).prepared()
    assert len(seen) == len(set(seen)) >= 2 * 2 * len(SIZES)


def test_sums_that_count_others_are_void():
    fed = federation()
    with pytest.raises(Void, match="do not count 4 clients and their samples"):
        wrong = {**dict(enumerate(SIZES)), 2: 31}
        HiddenPreparation(fed.recipe, SecureSum(), _InProcess(fed, SecureSum()), wrong, 1).prepared()


def test_a_sum_of_too_few_is_refused():
    with refused("a sum of fewer than 5"):
        by_hidden_messages(federation(), SecureSum(least=5))


def test_a_loopback_run_prepares_by_its_channel(monkeypatch, tmp_path):
    """A table of three clients, by the settings of a file; the run is that of a simulation."""
    rng, stages = np.random.default_rng(1), []
    rows = [f"{k},{rng.normal() * 1e3:.3f},{rng.normal():.4f},{k % 2}" for k in range(3) for _ in range(6)]
    (tmp_path / "t.csv").write_text("\n".join(["who,income,age,label", *rows]))
    inner = config.runner.by_hidden_messages
    monkeypatch.setattr(
        config.runner, "by_hidden_messages", lambda fed, stage: stages.append(str(stage)) or inner(fed, stage)
    )
    tables = {
        "data": {"table": str(tmp_path / "t.csv"), "label": "label", "client": "who"},
        "model": {"name": "linear"}, "method": {"name": "fedavg"}, "local": {"batch_size": 3},
        "run": {"rounds": 1, "channel": "secure-sum", "device": "cpu"},
    }  # fmt: skip
    real, simulated = (
        config.run({**tables, "run": {**tables["run"], "engine": engine}}) for engine in ("loopback", "sequential")
    )
    assert stages == ["secure-sum:0.67"]
    assert real.data.preparation == simulated.data.preparation and torch.equal(real.server.w, simulated.server.w)


# ---------------------------------------------------------------- a server that asks for other sums


def asked_for(inside, round, ids, about=None):
    """Return the total of one sum over these clients, as a server that keeps no rules asks for it."""
    names = ("present", "sum") if about is None else ("squares",)
    centers = {} if about is None else {"center": torch.full((3,), float(about), dtype=torch.float64)}
    slots, recipe = slots_of(widths_of(names, inside.data.recipe, 1), inside.stage.tags), inside.data.recipe
    header = {"kind": KIND, "stage": SUMS, "version": ua.__version__, "run": RUN, "round": round}
    shared = wire.encode({**header, "recipe": recipe.plain()}, centers)
    sums = hidden_sums(inside.stage, inside, RUN)
    requests = {client: (shared, wire.encode({}, {})) for client in ids}
    found = sums.collect((round, 0), ids, lambda n: slots, requests, _read, len(ids), 1)
    return unlimbed(found.totals[names[-1]])


@pytest.mark.parametrize("stage", [SecureSum(), Paillier(1024)], ids=str)
@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"round": 7, "ids": [0, 1, 2]}, "has two sums"),
        ({"round": 1, "ids": [0, 1, 2]}, "has two sums"),
        ({"round": 1, "ids": [0, 1, 2], "about": 0}, "whose difference"),
        ({"round": 0, "ids": [0, 1, 2]}, "whose difference"),
        ({"round": 1, "ids": [0, 1, 2, 3], "about": 2}, "whose difference"),
    ],
)
def test_sums_of_a_preparation_whose_difference_is_one_client_s_are_not_opened(second, words, stage):
    inside = _InProcess(federation(target=False), stage)
    asked_for(inside, 0, [0, 1, 2, 3])
    for _ in range(2 if second.get("about") == 2 else 0):  # once more the same tells nothing new
        asked_for(inside, 1, [0, 1, 2, 3], about=1)
    with refused(words):
        asked_for(inside, **second)


def test_ckks_prepares_features_of_many_clients():
    """Numbers of samples are in limbs as sums are."""
    rng = np.random.default_rng(0)
    fed = ua.Federation.from_arrays([(rng.normal(size=(2, 1)), np.arange(2)) for _ in range(5)])
    fed = fed.replace(recipe=Recipe.of(None, 1))
    assert by_hidden_messages(fed, Ckks("symmetric")).preparation == fed.prepared().preparation
