import pytest
import torch
from torch import nn

from unalike.errors import UnalikeError
from unalike.models import MODELS, CharLSTM, build, cnn_fedavg, cnn_feddc, mlp, small_cnn

IMAGE = torch.zeros(2, 1, 8, 8)

# Name, options, one batch of two, and the number of features.
EXAMPLES = [
    ("linear", {"features": 64, "classes": 5}, IMAGE, 64),
    ("mlp", {"features": 64, "hidden": [12, 7], "classes": 5}, IMAGE, 7),
    ("cnn-feddc", {"classes": 5}, torch.zeros(2, 3, 32, 32), 192),
    ("cnn-fedavg", {"channels": 1, "size": 8, "classes": 5}, IMAGE, 512),
    ("cnn-small", {"channels": 1, "size": 8, "classes": 5}, IMAGE, 64),
    ("cnn-small", {"channels": 1, "size": 9, "classes": 5, "norm": "batch"}, torch.zeros(2, 1, 9, 9), 64),
    ("cnn-small", {"channels": 1, "size": 8, "classes": 5, "norm": "none", "width": 3}, IMAGE, 24),
    ("char-lstm", {"hidden": 6, "classes": 5}, torch.zeros(2, 4, dtype=torch.long), 6),
    ("fourier", {"features": 64, "classes": 5, "width": 9}, IMAGE, 9),
]


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (lambda: build("linear", features=784, classes=10), 784 * 10 + 10),
        (lambda: mlp(784, classes=10), 199_210),  # McMahan et al.'s 2NN
        (lambda: cnn_feddc(10), 797_962),
        (lambda: cnn_feddc(100), 815_332),
        (lambda: cnn_fedavg(1, 28, 10), 1_663_370),
        (lambda: cnn_fedavg(3, 28, 10), 1_664_970),
        # 1·8·9+8, two numbers a channel, 8·16·9+16, two a channel, 16·2·2·10+10
        (lambda: small_cnn(1, 8, 10), 80 + 16 + 1168 + 32 + 650),
        (lambda: small_cnn(1, 8, 10, norm="none"), 80 + 1168 + 650),
        (lambda: CharLSTM(), 133_520),
        (lambda: build("fourier", features=16, classes=10), 2_700),  # pendigits in FedAvgR's paper
        (lambda: build("fourier", features=784, classes=10), 79_500),
    ],
)
def test_parameter_counts(model, parameters):
    assert count(model()) == parameters


def test_every_model_has_an_example():
    assert {name for name, *_ in EXAMPLES} == set(MODELS)


@pytest.mark.parametrize(("name", "options", "x", "features"), EXAMPLES)
def test_shapes_and_the_head_is_the_last_linear(name, options, x, features):
    model = build(name, **options)
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    seen = []
    last.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    logits = model(x)
    assert logits.shape == (2, 5)
    assert last is model.head
    [(read, written)] = seen
    assert read.shape == (2, features)
    assert written is logits  # nothing follows the head


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_small_cnn_normalises_as_asked(norm):
    kinds = {type(module) for module in small_cnn(1, 8, 10, norm=norm).modules()}
    assert (nn.GroupNorm in kinds) == (norm == "group")
    assert (nn.BatchNorm2d in kinds) == (norm == "batch")


def test_char_lstm_reads_the_whole_line_and_takes_bytes():
    torch.manual_seed(0)
    model = CharLSTM(hidden=6)
    line = torch.tensor([[1, 2, 3], [9, 2, 3]])
    logits = model(line)
    assert not torch.allclose(logits[0], logits[1])  # they differ in the first character alone
    assert torch.equal(model(line.to(torch.uint8)), logits)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cnn-fedvag", {}, "There is no model 'cnn-fedvag'. Did you mean 'cnn-fedavg'?"),
        (
            "linear",
            {"feature": 3, "classes": 2},
            "Model 'linear' has no option 'feature'. Did you mean 'features'?",
        ),
        ("cnn-small", {"size": 8}, "Model 'cnn-small' needs channels and classes."),
        ("mlp", {"features": 3}, "Model 'mlp' needs classes."),
        (
            "mlp",
            {"features": 3, "hidden": 5, "classes": 2},
            "hidden=5 was given; it must be a list of layer widths, such as [200, 200].",
        ),
        (
            "mlp",
            {"features": 3, "hidden": [5, 0], "classes": 2},
            "hidden[1]=0 was given; it must be a whole number of at least 1.",
        ),
        (
            "linear",
            {"features": "3", "classes": 2},
            "features='3' was given; it must be a whole number of at least 1.",
        ),
        (
            "linear",
            {"features": 3, "classes": True},
            "classes=True was given; it must be a whole number of at least 1.",
        ),
        (
            "cnn-fedavg",
            {"size": 3},
            "size=3 was given; it must be a whole number of at least 4.",
        ),
        (
            "cnn-small",
            {"channels": 1, "size": 8, "classes": 2, "norm": "bach"},
            "There is no norm 'bach'. Did you mean 'batch'?",
        ),
    ],
)
def test_wrong_options_are_one_clear_line(name, options, message):
    with pytest.raises(UnalikeError) as error:
        build(name, **options)
    assert str(error.value) == message
