"""One file that holds a model and all that it takes to use it."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
from paths import ROOT
from small import LOCAL, federation, model, refused, run
from test_core_only import process, site_of
from test_models import EXAMPLES
from torch import nn

import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.cli.predict import columns
from unalike.data.preparation import Preparation
from unalike.data.schema import Column, Schema
from unalike.models import MODELS, build
from unalike.run import deploy
from unalike.run.predict import Predictor

X = federation().global_test[0]
DIGITS = {"data": {"name": "digits", "clients": 3}, "model": {"name": "mlp", "hidden": [9]}, "run": {"rounds": 1}}


def trained(module=None, **given):
    module = module or ua.models.mlp(5, (4,), classes=3)
    return ua.simulate(module, federation(), ua.Scaffold(), rounds=1, local=LOCAL, device="cpu", **given)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return {"logits": self.head(self.norm(self.body(x)))}


def test_what_is_loaded_predicts_what_was_saved(tmp_path):
    done = trained()
    done.data.label_names = ["a", "b", "c"]
    state = torch.get_rng_state()
    loaded = ua.load_model(done.save(tmp_path / "m.unalike"))
    assert torch.equal(torch.get_rng_state(), state)
    mine, theirs = done.predict(X), loaded.predict(X)
    assert mine.labels == theirs.labels and np.array_equal(mine.probabilities, theirs.probabilities)
    assert loaded.about["method"]["name"] == "Scaffold" and loaded.about["rounds"] == 1
    assert not loaded.module.training and isinstance(loaded.module.relu1, nn.ReLU) and "3 classes" in repr(loaded)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_ours_comes_back(name, tmp_path):
    forest = ("forest", {"features": 64, "classes": 5, "trees": 2, "depth": 2}, torch.zeros(2, 1, 8, 8), 64)
    options, x = next((options, x) for known, options, x, _ in [*EXAMPLES, forest] if known == name)
    module = build(name, **options)
    given = Predictor(module, tuple(x.shape[1:]), tokens=not x.is_floating_point(), classes=5)
    loaded = ua.load_model(deploy.save(given, tmp_path / "m"))
    assert np.array_equal(loaded.predict(x).probabilities, given.predict(x).probabilities)


def test_a_model_of_one_s_own_needs_what_builds_it(tmp_path):
    done = trained(Net(), output="logits", dtype="float64")
    file = done.save(tmp_path / "m", source="net.py:Net")
    with refused(r"holds a user's own model \(Net, built by net.py:Net\).*ua.load_model\(path, build=Net\)"):
        ua.load_model(file)
    for builds in (Net, Net(), lambda: Net()):
        loaded = ua.load_model(file, build=builds)
        assert loaded.predict(X).labels == done.predict(X).labels and loaded.output == "logits"
    with refused(r"does not fit .*'0.bias' is \[3\] in the model and not there in the file"):
        ua.load_model(file, build=lambda: nn.Sequential(nn.Linear(5, 3)))
    with refused("build must give a torch.nn.Module; it gave int"):
        ua.load_model(file, build=lambda: 3)


def test_a_model_of_ours_with_another_layer_is_one_s_own(tmp_path):
    changed = ua.models.mlp(5, (4,), classes=3)
    changed.relu1 = nn.Tanh()
    with refused("holds a user's own model"):
        ua.load_model(trained(changed).save(tmp_path / "m"))


def test_outputs_by_a_function(tmp_path):
    done = trained(Net(), output=lambda out: out["logits"])
    with refused(r"whose outputs a function picks \(.*lambda.*give it, ua.load_model\(path, output=...\)"):
        ua.load_model(done.save(tmp_path / "m"), build=Net)
    loaded = ua.load_model(tmp_path / "m", build=Net, output=lambda out: out["logits"])
    assert loaded.predict(X).labels == done.predict(X).labels


def test_files_to_start_from_are_not_needed_again(tmp_path):
    vectors = tmp_path / "v.npy"
    np.save(vectors, np.ones((9, 4), np.float32))
    options = {"vocabulary": 9, "embedding": 4, "hidden": 3, "layers": 1, "vectors": str(vectors)}
    given = Predictor(build("tweet-lstm", **options), (6,), tokens=True, classes=2)
    file = deploy.save(given, tmp_path / "m")
    vectors.unlink()
    assert torch.equal(ua.load_model(file).module.embedding.weight, torch.ones(9, 4))


def test_tied_weights_and_a_client_s_own_model(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = nn.Linear(5, 5), nn.Linear(5, 5)
            self.head.weight = self.a.weight

        def forward(self, x):
            return self.head(self.a(x))

    done = trained(Tied())
    assert ua.load_model(done.save(tmp_path / "m"), build=Tied).predict(X).labels == done.predict(X).labels
    own = run(ua.LocalOnly(), module=ua.models.linear(5, 3))
    loaded = ua.load_model(own.save(tmp_path / "own", client=2))
    assert np.array_equal(loaded.predict(X).probabilities, own.predict(X, client=2).probabilities)
    assert loaded.about["client"] == 2


def test_preparation_and_schema_come_back(tmp_path):
    done = trained()
    done.data.preparation = Preparation((1 / 3,) * 5, (0.1,) * 5, (0.0,) * 5, (True,) * 5)
    done.data.schema = Schema((Column("a"), Column("b", "category", ("x", "y"))), "c", ("p", "q", "r"))
    loaded = ua.load_model(done.save(tmp_path / "m"))
    assert loaded.preparation == done.data.preparation and loaded.schema == done.data.schema
    assert np.array_equal(loaded.predict(X).probabilities, done.predict(X).probabilities)
    done.data.preparation = None
    assert not np.array_equal(loaded.predict(X).probabilities, done.predict(X).probabilities)


# ---------------------------------------------------------------- files that will not do


def rewritten(file, **changes):
    """The same file with other metadata."""
    with safetensors.safe_open(file, "pt") as content:
        about = json.loads(content.metadata()["unalike"])
    about = {k: v for k, v in (about | changes).items() if v != "gone"}
    file.write_bytes(safetensors.torch.save(safetensors.torch.load_file(file), {"unalike": json.dumps(about)}))


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"format": 7}, "has the format 7"),
        ({"shape": "gone"}, "is damaged: KeyError"),
        ({"schema": 3}, "is damaged: TypeError"),
        ({"preparation": {"center": 1}}, "no preparation of features"),
        ({"model": {"name": "mlp", "options": {"features": 5, "hidden": [10**12], "classes": 3}}}, "does not fit"),
        ({"model": {"name": "mpl", "options": {}}}, "no model 'mpl'"),
        ({"model": []}, "is damaged"),
    ],
)
def test_changed_metadata_are_one_line(changes, words, tmp_path):
    file = trained().save(tmp_path / "m")
    rewritten(file, **changes)
    with refused(words):
        ua.load_model(file)


def test_other_files_are_one_line(tmp_path):
    (tmp_path / "text").write_text("no model at all")
    (tmp_path / "weights").write_bytes(safetensors.torch.save(model().state_dict()))
    cut = trained().save(tmp_path / "cut")
    cut.write_bytes(cut.read_bytes()[:-9])
    for name, words in (
        ("text", "cannot be read as a model"),
        ("weights", "holds weights and nothing else"),
        ("cut", "cannot be read as a model"),
        ("nowhere", "There is no model file"),
    ):
        with refused(words):
            ua.load_model(tmp_path / name)
    with refused("cannot be written: No such file"):
        trained().save(tmp_path / "no/where")


# ---------------------------------------------------------------- on the command line


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "r"
    done = config.run({**DIGITS, "run": {"rounds": 1, "folder": str(folder)}})
    assert main(["export", str(folder), "--deploy", "--quiet"]) == 0
    return done, folder / "model.unalike"


def test_export_and_predict(exported, tmp_path, capsys):
    done, file = exported
    x = ua.load("digits").x[:4].numpy()
    np.save(tmp_path / "x.npy", x)
    capsys.readouterr()
    assert main(["predict", str(file), str(tmp_path / "x.npy")]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    want = done.predict(x)
    assert head == "row,prediction," + ",".join(f"probability of {k}" for k in range(10))
    assert [line.split(",")[:2] for line in lines] == [[str(k + 1), str(c)] for k, c in enumerate(want.classes)]
    np.testing.assert_allclose([float(line.split(",")[5]) for line in lines], want.probabilities[:, 3], atol=1e-6)
    assert main(["predict", str(file), str(tmp_path / "x.npy"), "--out", str(tmp_path / "p.csv")]) == 0
    assert (tmp_path / "p.csv").read_text().splitlines() == [head, *lines]
    capsys.readouterr()
    assert main(["predict", str(file), str(tmp_path / "x.npy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == want.labels


def test_mistakes_of_predict_are_one_line(exported, tmp_path, capsys):
    (tmp_path / "bad.npy").write_text("x")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    for words, said in (
        ([str(exported[1]), str(tmp_path / "none.csv")], "there is no file"),
        ([str(exported[1]), str(tmp_path / "bad.npy")], "cannot be read as an array"),
        ([str(exported[1]), str(tmp_path / "rows.csv")], "did not learn from a table"),
        ([str(tmp_path / "rows.csv"), str(tmp_path / "rows.csv")], "cannot be read as a model"),
    ):
        assert main(["predict", *words]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1, err


def test_a_model_from_a_file_of_one_s_own(tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(64, 10))\n"
    )
    where = f"{tmp_path}/net.py:build"
    config.run({**DIGITS, "model": {"file": where}, "run": {"rounds": 1, "folder": str(tmp_path / "r")}})
    assert main(["export", str(tmp_path / "r"), "--deploy", "--allow-code"]) == 0
    np.save(tmp_path / "x.npy", np.zeros((2, 64)))
    words = ["predict", str(tmp_path / "r/model.unalike"), str(tmp_path / "x.npy")]
    capsys.readouterr()
    assert main(words) == 2 and f"built by {where}" in capsys.readouterr().err
    assert main([*words, "--build", where]) == 0 and len(capsys.readouterr().out.splitlines()) == 3


def test_numbers_have_one_column():
    assert columns(np.array([1.5, 2.0])) == {"row": [1, 2], "prediction": [1.5, 2.0]}
    assert list(columns(np.ones((1, 2)))) == ["row", "prediction 0", "prediction 1"]


def test_in_a_fresh_process_that_has_only_the_core(tmp_path):
    site = site_of(("torch", "numpy", "safetensors"), tmp_path / "site")
    (site / "unalike").symlink_to(ROOT / "unalike")
    done = trained()
    done.save(tmp_path / "m.unalike")
    program = f"import unalike as ua\nprint(ua.load_model('m.unalike').predict({X[:3].tolist()}).labels)"
    found = process(site, program, cwd=tmp_path)
    assert found.stdout.strip() == str(done.predict(X[:3]).labels), found.stderr
