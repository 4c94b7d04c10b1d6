from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import unalike as ua
from unalike.errors import UnalikeError
from unalike.models import MODELS, CharLSTM, ResNet18, TweetLSTM, build, cnn_fedavg, cnn_feddc, mlp, small_cnn

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
    ("resnet18", {"classes": 5}, torch.zeros(2, 3, 32, 32), 512),
    ("resnet18", {"classes": 5, "norm": "batch", "stem": "cifar", "channels": 1}, torch.zeros(2, 1, 8, 8), 512),
    ("tweet-lstm", {"vocabulary": 9, "embedding": 4, "hidden": 6, "classes": 5}, torch.zeros(2, 4).long(), 6),
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
        (lambda: mlp(784, [100, 100], classes=10), 89_610),  # FedDC's EMNIST-L
        (lambda: cnn_fedavg(1, 28, 62), 1_690_046),  # rFedAvg's FEMNIST
        (lambda: CharLSTM(hidden=256), 817_872 + 2 * 4 * 256),  # FedProx's Shakespeare; torch has a second bias a layer
        (lambda: TweetLSTM(), 1_998_242),
        (lambda: ResNet18(1000, norm="batch"), 11_689_512),  # as torchvision documents it
        (lambda: ResNet18(1000, norm="group"), 11_689_512),
        (lambda: ResNet18(10, stem="cifar"), 11_173_962),
        (lambda: build("fourier", features=16, classes=10), 2_700),  # pendigits in FedAvgR's paper
        (lambda: build("fourier", features=784, classes=10), 79_500),
    ],
)
def test_parameter_counts(model, parameters):
    assert count(model()) == parameters


def test_every_model_has_an_example():
    assert {name for name, *_ in EXAMPLES} | {"forest"} == set(MODELS)  # trees have no last Linear: tests/methods


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


def test_frozen_word_vectors_neither_train_nor_travel(tmp_path):
    matrix = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", matrix)
    options = {"vocabulary": 9, "embedding": 4, "hidden": 3, "layers": 1, "vectors": str(tmp_path / "vectors.npy")}
    model = build("tweet-lstm", **options)
    x = torch.randint(0, 9, (12, 5))
    fed = ua.Federation.from_arrays([(x, torch.arange(12) % 2)])
    run = ua.simulate(model, fed, ua.FedAvg(), rounds=1)
    assert np.array_equal(run.model.embedding.weight.detach().numpy(), matrix)
    trained = 4 * 3 * (4 + 3 + 2) + 3 * 2 + 2
    assert run.history[-1]["bytes_up"] == 4 * trained
    with pytest.raises(UnalikeError, match="has shape"):
        build("tweet-lstm", **{**options, "embedding": 5})
    assert sum(p.numel() for p in TweetLSTM().parameters() if p.requires_grad) == 1_098_242


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet_starts_from_a_weights_file(tmp_path, suffix, norm):
    """A file as torchvision writes it: `fc` for the head, here of another number of classes."""
    torch.manual_seed(1)
    source = ResNet18(7, norm=norm)
    state = {n.replace("head.", "fc."): t.clone() for n, t in source.state_dict().items()}
    path = str(tmp_path / f"weights{suffix}")
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    other, same = ResNet18(3, norm=norm, weights=path), ResNet18(7, norm=norm, weights=path)
    assert torch.equal(other.layer3[1].conv2.weight, source.layer3[1].conv2.weight)
    assert torch.equal(same.head.weight, source.head.weight) and other.head.weight.shape == (3, 512)
    with pytest.raises(UnalikeError, match="give the weights of the same stem"):
        ResNet18(7, norm=norm, stem="cifar", weights=path)
    del state["layer4.0.downsample.0.weight"]
    torch.save(state, tmp_path / "less.pth")
    with pytest.raises(UnalikeError, match="has no 'layer4"):
        ResNet18(7, norm=norm, weights=str(tmp_path / "less.pth"))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet_trains_alike_alone_and_in_a_stack(norm):
    rng = np.random.default_rng(0)
    fed = ua.Federation.from_arrays([(rng.normal(size=(n, 1, 8, 8)), np.arange(n) % 2) for n in (3, 2)], classes=2)
    ends = []
    for engine in ("sequential", "batched"):
        torch.manual_seed(0)
        model = ResNet18(2, channels=1, norm=norm, stem="cifar")
        local = ua.LocalTraining(steps=1, batch_size=2, lr=0.01)
        run = ua.simulate(model, fed, ua.FedAvg(), rounds=1, local=local, engine=engine, dtype="float64")
        ends.append(torch.cat([t.reshape(-1) for t in run.model.state_dict().values()]))
    assert torch.allclose(*ends, rtol=0, atol=1e-9)


def test_a_weights_file_that_runs_code_is_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"conv1.weight": Attack()}, tmp_path / "bad.pth")
    for name in ("bad.pth", "absent.pth"):
        with pytest.raises(UnalikeError):
            ResNet18(weights=str(tmp_path / name))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cnn-fedvag", {}, "There is no model 'cnn-fedvag'. Did you mean 'cnn-fedavg'?"),
        ("linear", {"feature": 3, "classes": 2}, "Model 'linear' has no option 'feature'. Did you mean 'features'?"),
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
        ("linear", {"features": "3", "classes": 2}, "features='3' was given; it must be a whole number of at least 1."),
        (
            "linear",
            {"features": 3, "classes": True},
            "classes=True was given; it must be a whole number of at least 1.",
        ),
        ("cnn-fedavg", {"size": 3}, "size=3 was given; it must be a whole number of at least 4."),
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


def test_an_mlp_with_a_skip_reads_the_features_too():
    torch.manual_seed(0)
    model, x = ua.models.mlp(4, (3,), classes=2, skip=True), torch.randn(5, 4)
    hidden = torch.relu(model.beside.inner.fc1(x))
    assert torch.equal(model(x), model.head(torch.cat([x, hidden], 1))) and model.head.in_features == 7
    assert sum(p.numel() for p in model.parameters()) == (4 * 3 + 3) + (7 * 2 + 2)
    plain = ua.models.mlp(4, (), classes=2, skip=True)  # nothing to be beside of
    assert plain.head.in_features == 4
