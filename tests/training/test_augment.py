import numpy as np
import pytest
import torch

import unalike as ua
from unalike import draws
from unalike.errors import UnalikeError
from unalike.training import augment

KEYS = torch.tensor([draws.key(5, k) for k in range(3)])


def by_hand(x, flipped, cropped, down, right, pad):
    """Mirror, then put into a zero frame and cut out again, one picture at a time."""
    out = []
    for k, picture in enumerate(x):
        picture = picture[:, :, ::-1] if flipped[k] else picture
        if cropped[k]:
            c, h, w = picture.shape
            frame = np.zeros((c, h + 2 * pad, w + 2 * pad), picture.dtype)
            frame[:, pad : pad + h, pad : pad + w] = picture
            top, left = pad + down[k], pad + right[k]
            picture = frame[:, top : top + h, left : left + w]
        out.append(picture)
    return np.stack(out)


def questions(key, b, pad):
    """What each picture of a batch was told, from the draws themselves."""
    draw = draws.bits(key, torch.arange(b)).numpy()
    part = [(draw >> (16 * k)) & 0xFFFF for k in range(4)]
    shift = [(p * (2 * pad + 1) >> 16) - pad for p in part[2:]]
    return part[0] < 1 << 15, part[1] < 1 << 15, *shift


def test_mirrors_and_shifts_as_by_hand_for_one_client_and_for_a_stack():
    x = torch.randn(3, 40, 2, 5, 7)
    change = augment.parse("flip,crop:2:0.5")
    together = change(x, KEYS)
    for k in range(3):
        want = by_hand(x[k].numpy(), *questions(KEYS[k], 40, 2), pad=2)
        assert np.array_equal(change(x[k], KEYS[k]).numpy(), want)
        assert np.array_equal(together[k].numpy(), want)
    flipped, cropped, down, right = questions(KEYS[0], 40, 2)
    assert 5 < flipped.sum() < 35 and 5 < cropped.sum() < 35 and (flipped != cropped).any()
    assert set(down) == set(right) == {-2, -1, 0, 1, 2} and (down != right).any()


def test_shares_are_as_asked():
    x = torch.arange(9.0).reshape(1, 1, 3, 3).expand(20_000, 1, 3, 3) + 1
    mirrored = augment.parse("flip:0.2")(x, KEYS[0])[:, 0, 0, 0] == 3
    assert abs(mirrored.float().mean() - 0.2) < 0.01
    shifted = augment.parse("crop:1")(x, KEYS[0])
    assert abs((shifted[:, 0, 1, 1] == 5).float().mean() - 1 / 9) < 0.01  # one of nine shifts is none
    half = augment.parse("crop:1:0.5")(x, KEYS[0])
    assert abs((half[:, 0, 1, 1] == 5).float().mean() - (0.5 + 0.5 / 9)) < 0.01
    assert torch.equal(augment.parse("crop:0")(x, KEYS[0]), x)


def test_padding_behind_a_short_batch_changes_nothing():
    x = torch.randn(8, 1, 4, 4)
    change = augment.parse("flip,crop:1")
    assert torch.equal(change(x, KEYS[0])[:5], change(x[:5], KEYS[0]))


@pytest.mark.parametrize(
    "text", ["flop", "flip:2", "crop", "crop:x", "crop:-1", "flip:0.5:3", "flip,flip", "crop:1:0.5:9", "", "flip:nan"]
)
def test_wrong_words_are_one_clear_line(text):
    with pytest.raises(UnalikeError) as error:
        ua.LocalTraining(augment=text)
    assert "\n" not in str(error.value)


def test_what_is_no_picture_is_refused():
    fed = ua.Federation.from_arrays([(np.zeros((4, 3), np.float32), np.arange(4) % 2)])
    with pytest.raises(UnalikeError, match="augment was asked for, and a sample is"):
        ua.simulate(
            ua.models.softmax_regression(3, 2), fed, ua.FedAvg(), rounds=1, local=ua.LocalTraining(augment="flip")
        )


# ---------------------------------------------------------------- inside training


def federation():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 6, 6)), rng.integers(0, 3, n)) for n in (11, 7, 16, 4)]
    return ua.Federation.from_arrays(parts, classes=3)


def trained(engine="sequential", augmented="flip,crop:2:0.5", method=None, rounds=2, **more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(48, 3)
    )
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.05, augment=augmented)
    return ua.simulate(
        model, federation(), method or ua.Scaffold(), rounds=rounds, local=local, engine=engine, dtype="float64",
        seed=3, **more
    )  # fmt: skip


def vector(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


@pytest.mark.parametrize("engine", ["workers", "batched", "loopback"])
def test_engines_agree(engine):
    assert torch.allclose(vector(trained(engine)), vector(trained()), rtol=0, atol=1e-11)


@pytest.mark.slow
def test_a_compiled_stack_agrees():
    assert torch.allclose(vector(trained("batched", compile=True)), vector(trained()), rtol=0, atol=1e-11)


def test_engines_agree_where_a_step_reads_several_batches():
    class TwoBatches(ua.FedAvg):
        """One step reads two mini-batches: each is augmented on its own."""

        def client(self, me, s, m):
            def step(theta, batches, lr):
                return theta - lr * (batches[0].grad(theta) + 0.5 * batches[1].grad(theta))

            return me.train(at=m.w, step=step, batches=2).then(self.done)

    method = TwoBatches()
    one, stack = vector(trained(method=method)), vector(trained("batched", method=method))
    assert torch.allclose(one, stack, rtol=0, atol=1e-11)


def test_it_changes_training_and_resumes(tmp_path):
    whole = vector(trained(folder=tmp_path / "whole"))
    assert not torch.allclose(whole, vector(trained(augmented=None)), atol=1e-4)
    trained(rounds=1, folder=tmp_path / "parts")
    assert torch.equal(vector(trained(folder=tmp_path / "parts", resume=True)), whole)
