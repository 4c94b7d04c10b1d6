"""Losses and metrics of the user's own: per sample, averaged over the real ones."""

import pytest
import torch
import torch.nn.functional as F
from reference import Each, batches, federation, mlp, seeded, simulate, train, vector
from torch import nn
from torch.func import vmap

import unalike as ua
from unalike.nn.task import cross_entropy

SIZES = (7, 4, 11)
STORED = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1, shuffle=False)


def regression(shape):
    """Targets [n] or [n, k], with per-client and global test data."""
    draw = torch.Generator().manual_seed(0)

    def pair(n):
        x = torch.randn(n, 3, generator=draw, dtype=torch.float64)
        return x, torch.randn(n, *shape, generator=draw, dtype=torch.float64) + x.sum(1).reshape(n, *[1] * len(shape))

    return ua.Federation.from_arrays([pair(n) for n in SIZES], test=pair(6), client_tests=[pair(2) for _ in SIZES])


def absolute_error(output, y):
    return (output.reshape(y.shape) - y).abs().reshape(len(y), -1).sum(-1)


def reference(module, fed, loss):
    """Weights after one round and one client's differences, by plain PyTorch."""
    deltas = []
    for k, n in enumerate(SIZES):
        one = seeded(module)
        slices = batches(n, 3, 2 * -(-n // 3))
        train(one, *fed.train.of(k), slices, torch.optim.SGD(one.parameters(), lr=0.1), loss=loss)
        deltas.append(vector(one) - vector(seeded(module)))
    return torch.stack(deltas)


REGRESSIONS = {
    "[n]": ((), lambda: nn.Linear(3, 1), lambda o, y: F.mse_loss(o[:, 0], y)),
    "[n], flat output": ((), lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), F.mse_loss),
    "[n, 1]": ((1,), lambda: nn.Linear(3, 1), F.mse_loss),
    "[n, 2]": ((2,), lambda: nn.Linear(3, 2), F.mse_loss),
}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_squared_error_with_metrics_of_ones_own(name, engine):
    shape, module, loss = REGRESSIONS[name]
    fed = regression(shape)
    run = simulate(
        seeded(module), fed, STORED, engine, loss="squared-error", metrics={"off": absolute_error},
        evaluate_clients="all",
    )  # fmt: skip
    torch.testing.assert_close(run.server.deltas, reference(module, fed, loss), atol=1e-10, rtol=0)
    line, after = run.history[-1], run.model
    x, y = fed.global_test
    off = (after(x).reshape(y.shape) - y).detach()
    assert line["test_loss"] == pytest.approx(float((off**2).mean()), abs=1e-12)
    assert line["test_off"] == pytest.approx(float(off.abs().sum() / len(y)), abs=1e-12)
    each = [absolute_error(after(x).detach(), y).mean() for x, y in (fed.test.of(k) for k in range(3))]
    assert run.client_values["off"] == pytest.approx([float(v) for v in each], abs=1e-12)
    assert "test_accuracy" not in line


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_loss_module_is_made_per_sample(engine):
    """Short and padded batches are averaged over their real samples, whatever the module's reduction."""
    fed = regression((2,))
    module = lambda: nn.Linear(3, 2)  # noqa: E731
    for loss in (nn.MSELoss(), nn.MSELoss(reduction="none"), nn.SmoothL1Loss(beta=0.3), nn.HuberLoss(delta=0.5)):
        plain = type(loss)(**{n: getattr(loss, n) for n in ("beta", "delta") if hasattr(loss, n)})
        run = simulate(seeded(module), fed, STORED, engine, loss=loss)
        torch.testing.assert_close(run.server.deltas, reference(module, fed, plain), atol=1e-10, rtol=0)
    loss = nn.MSELoss()
    simulate(seeded(module), fed, STORED, engine, loss=loss)
    assert loss.reduction == "mean"  # the user's own is left alone


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_loss_modules_own_tensors_go_to_the_runs_dtype(engine):
    """Class weights are a plain factor of each sample's loss: the mean is over samples, not over weights."""
    fed, weights = federation(SIZES), torch.tensor([1.0, 2.0, 0.5])
    module = lambda: nn.Linear(3, 3)  # noqa: E731
    expected = reference(
        module, fed, lambda o, y: (F.cross_entropy(o, y, reduction="none") * weights.double()[y]).mean()
    )
    run = simulate(seeded(module), fed, STORED, engine, loss=nn.CrossEntropyLoss(weight=weights, label_smoothing=0.0))
    torch.testing.assert_close(run.server.deltas, expected, atol=1e-10, rtol=0)


def mixed(output, y):
    return (output - output.mean(0)).square().sum(-1)


CLASSES, FLOATS = federation(SIZES), regression(())
WRONG = [
    (CLASSES, dict(loss=F.cross_entropy), "one value per sample, [2]; it gave shape []: use reduction='none'."),
    (CLASSES, dict(loss=lambda o, y: 1.0), "it gave float"),
    (CLASSES, dict(loss="cross-entrop"), "Did you mean 'cross-entropy'?"),
    (CLASSES, dict(loss=nn.CrossEntropyLoss), "got CrossEntropyLoss, a class"),
    (CLASSES, dict(loss=3), "got 3"),
    (CLASSES, dict(loss=nn.CrossEntropyLoss(reduction="sum")), "reduction='sum': it must be 'mean' or 'none'"),
    (CLASSES, dict(loss=nn.BCEWithLogitsLoss()), "does not accept outputs [2, 3] and labels [2] (torch.int64)"),
    (CLASSES, dict(loss=mixed), "The loss mixes samples"),
    (CLASSES, dict(loss=lambda o, y: (o.argmax(1) != y).long()), "The loss does not accept outputs [2, 3] and labels"),
    (CLASSES, dict(metrics={"a": lambda o, y: o}), "'a' must give one value per sample, [2]; it gave [2, 3]"),
    (CLASSES, dict(metrics={"a": lambda o, y: o[:, 7]}), "The metric 'a' does not accept outputs [2, 3]"),
    (CLASSES, dict(metrics={"loss": absolute_error}), "A metric cannot be named 'loss'"),
    (CLASSES, dict(metrics={"means.a": absolute_error}), "A metric cannot be named 'means.a'"),
    (CLASSES, dict(metrics=[3]), "metrics must be a list of names (accuracy, auc, "),
    (CLASSES, dict(metrics=7), "metrics must be a list of names"),
    (CLASSES, dict(metrics=["acu"]), "There is no metric 'acu'"),
    (CLASSES, dict(metrics=["r2"]), "'r2' is for numbers and the labels are classes: use one of accuracy, auc,"),
    (CLASSES, dict(metrics=[absolute_error]), "The metric 'absolute_error' does not accept outputs [2, 3]"),
    (FLOATS, dict(metrics=["auc"]), "The loss does not accept outputs [2, 3]"),
    (FLOATS, dict(), "The loss does not accept outputs [2, 3] and labels [2] (torch.float64)"),
    (FLOATS, dict(loss="squared-error"), "The loss does not accept outputs [2, 3] and labels [2]"),
]  # fmt: skip


@pytest.mark.parametrize("fed,given,words", WRONG)
def test_a_wrong_loss_or_metric_gets_one_clear_line(fed, given, words):
    with pytest.raises(ua.UnalikeError) as caught:
        simulate(mlp(), fed, STORED, **given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_broadcast_loss_is_found():
    """nn.MSELoss on [n, 1] and [n] compares every sample with every other."""
    with pytest.raises(ua.UnalikeError, match=r"outputs \[2, 1\] and labels \[2\] must go together row by row"):
        simulate(seeded(lambda: nn.Linear(3, 1)), FLOATS, STORED, loss=nn.MSELoss())


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x), x


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.spare = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x)


@pytest.mark.parametrize(
    "module,given,words",
    [
        (nn.Linear(4, 3), {}, "The model does not accept the data: a batch of shape [2, 3] (torch.float64) gave: mat1"),
        (Two(), {}, "with one row per sample; 2 samples gave tuple. Say which part: output='logits'"),
        (Unused(), {}, "The head 'spare' is not called by the model's forward: name another head."),
        (Unused(), {"head": "ot"}, "no layer 'ot' to be its head. Did you mean 'out'?"),
        (nn.Sequential(nn.Flatten()), {}, "The model has no trainable weights"),
        (nn.Sequential(nn.LazyLinear(3)), {}, "call the model once on a batch"),
        (nn.Sequential(nn.Linear(3, 3), nn.Flatten(0), nn.Unflatten(0, (1, -1))), {}, "2 samples gave [1, 6]"),
        (nn.Linear, {}, "Linear() does not build a model: TypeError"),
    ],
)
def test_a_wrong_model_gets_one_clear_line(module, given, words):
    with pytest.raises(ua.UnalikeError) as caught:
        simulate(module, CLASSES, STORED, **given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_with_one_output_a_sample():
    run = simulate(
        seeded(lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))),
        FLOATS,
        STORED,
        loss="squared-error",
        method=Each(),
    )
    assert run.task.outputs == 1


def test_labels_that_count_for_nothing_in_a_stack():
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(3, 4, 5, generator=g), torch.randint(0, 5, (3, 4), generator=g)
    y[0, 1] = y[2, 3] = -100
    want = torch.stack([F.cross_entropy(*one, reduction="none") for one in zip(logits, y, strict=True)])
    assert torch.equal(vmap(cross_entropy)(logits, y), want) and want[0, 1] == want[2, 3] == 0
