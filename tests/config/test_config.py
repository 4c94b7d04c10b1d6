"""A run from a file is the run from Python; mistakes in a file are one line."""

import json
import re
import tomllib

import numpy as np
import pytest
import torch
from paths import ROOT

import unalike as ua
from unalike import config, core

GOOD = """
[data]
name = "digits"
partition = "dirichlet:0.1"
clients = 8
test = 0.2

[model]
name = "mlp"
hidden = [16]

[method]
name = "fedprox"
mu = 0.5

[local]
epochs = 1
batch_size = 10

[run]
rounds = 2
clients_per_round = 0.5
seed = 4
"""


def numbers(lines):
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


def test_file_and_python_give_the_same_run(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(GOOD + f'folder = "{tmp_path}/out"\n')
    assert core.main([str(file)]) == 0
    assert "test_accuracy" in capsys.readouterr().out
    from_file = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    fed = ua.load("digits").split(ua.partition.Dirichlet(0.1), clients=8, seed=0, test=0.2)
    module = ua.models.mlp(64, (16,), classes=10)
    run = ua.simulate(
        module, fed, ua.FedProx(mu=0.5), rounds=2, clients_per_round=0.5, seed=4,
        local=ua.LocalTraining(epochs=1, batch_size=10),
    )  # fmt: skip
    assert numbers(from_file) == numbers(run.history)
    assert core.main([str(file)]) == 2
    assert core.main([str(file), "--resume"]) == 0


@pytest.mark.parametrize(
    "old,new,line",
    [
        ('name = "fedprox"', 'name = "fedprx"', "There is no method 'fedprx'. Did you mean 'fedprox'?"),
        ("mu = 0.5", "nu = 0.5", "[method] has no setting 'nu'. There are: mu, name."),
        ("mu = 0.5", 'mu = "strong"', "[method] mu must be a number; got 'strong'."),
        ("[local]", "[locl]", "has a table [locl], which means nothing. Did you mean 'local'?"),
        ("epochs = 1", "epoch = 1", "[local] has no setting 'epoch'. Did you mean 'epochs'?"),
        ("rounds = 2", "round = 2", "[run] has no setting 'round'. Did you mean 'rounds'?"),
        ("rounds = 2", "", "[run] needs rounds"),
        ("clients_per_round = 0.5", 'clients_per_round = "bernouli:0.5"', "no sampling 'bernouli'. Did you mean"),
        ("clients_per_round = 0.5", 'clients_per_round = "bernoulli:x"', "after the colon there must be a number"),
        ('name = "digits"', 'name = "digit"', "Did you mean 'digits'?"),
        ('name = "digits"', "", "[data] needs a name or a folder"),
        ("dirichlet:0.1", "dirichlett:0.1", "Did you mean 'dirichlet'?"),
        ("clients = 8", "clients = 'x'", "clients must be a whole number"),
        ('name = "mlp"', 'name = "cnn-smal"', "There is no model 'cnn-smal'."),
        ("hidden = [16]", "hiden = [16]", "[model] has no setting 'hiden'. Did you mean 'hidden'?"),
        ("[data]", "[data", "is not TOML"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, old, new, line):
    assert old in GOOD
    file = tmp_path / "run.toml"
    file.write_text(GOOD.replace(old, new))
    assert core.main([str(file)]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said
    assert len(said.splitlines()) == 1


def test_samplings_and_full_batch():
    assert config.make_local({"batch_size": "full", "steps": 1}).batch_size is None
    assert config.make_sampling("bernoulli:0.15") == ua.sampling.Bernoulli(0.15)
    assert config.make_sampling("by-size:3") == ua.sampling.BySize(3)


def test_no_such_file(capsys):
    assert core.main(["nowhere.toml"]) == 2
    assert "There is no file 'nowhere.toml'." in capsys.readouterr().err


# ---------------------------------------------------------------- the JSON Schema


def valid(value, schema):
    """Whether a value satisfies a JSON Schema, for the words that ours uses; any other word is a failure."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    is_object, is_list, is_number = (isinstance(value, kind) for kind in (dict, list, int | float))

    def others(allowed):
        rest = [v for k, v in value.items() if k not in schema.get("properties", {})]
        return all(valid(v, allowed) for v in rest) if isinstance(allowed, dict) else allowed or not rest

    words = {
        "type": lambda t: isinstance(value, kinds[t]) and (t == "boolean" or not isinstance(value, bool)),
        "enum": lambda options: value in options,
        "const": lambda one: value == one,
        "minimum": lambda least: not is_number or value >= least,
        "properties": lambda p: not is_object or all(valid(value[k], s) for k, s in p.items() if k in value),
        "required": lambda names: not is_object or set(names) <= set(value),
        "additionalProperties": lambda allowed: not is_object or others(allowed),
        "propertyNames": lambda s: not is_object or all(valid(k, s) for k in value),
        "items": lambda s: not is_list or all(valid(v, s) for v in value),
        "prefixItems": lambda parts: not is_list or all(valid(v, s) for v, s in zip(value, parts, strict=False)),
        "minProperties": lambda n: not is_object or len(value) >= n,
        "pattern": lambda p: not isinstance(value, str) or bool(re.search(p, value)),
        "exclusiveMinimum": lambda n: not is_number or value > n,
        "maximum": lambda n: not is_number or value <= n,
        "exclusiveMaximum": lambda n: not is_number or value < n,
        "minItems": lambda n: not is_list or len(value) >= n,
        "maxItems": lambda n: not is_list or len(value) <= n,
        "allOf": lambda parts: all(valid(value, s) for s in parts),
        "anyOf": lambda parts: any(valid(value, s) for s in parts),
        "oneOf": lambda parts: sum(valid(value, s) for s in parts) == 1,
        "not": lambda s: not valid(value, s),
        "if": lambda s: not valid(value, s) or valid(value, schema["then"]),
        "then": lambda s: True,
        **{word: lambda _: True for word in ("description", "default", "title", "$schema")},
    }
    return all([words[word](content) for word, content in schema.items()])


SCHEMA = json.loads(json.dumps(config.schema()))


def test_schema_accepts_what_a_run_writes_and_the_documentation_shows(tmp_path):
    tables = tomllib.loads(GOOD)
    assert valid(tables, SCHEMA)
    tables["run"]["folder"] = str(tmp_path / "out")
    config.run(tables)
    written = tomllib.loads((tmp_path / "out/config.toml").read_text())
    assert "facts" in written and valid(written, SCHEMA)
    assert valid(tomllib.loads(config.__doc__.split("\n\n", 1)[1].rpartition("What a setting")[0]), SCHEMA)
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
            assert valid(tomllib.loads(block), SCHEMA), page


def test_schema_accepts_files_of_one_s_own():
    own = {"data": {"folder": "x"}, "run": {"rounds": 1}}
    assert valid(own | {"model": {"file": "a.py:f", "depth": 3}, "method": {"file": "a.py:F", "strength": 1}}, SCHEMA)
    assert valid(own | {"local": {"lr": [0.1, 0.2], "batch_size": "full", "betas": [0.8, 0.9]}}, SCHEMA)


@pytest.mark.parametrize(
    "old,new",
    [
        ("mu = 0.5", "muu = 0.5"),
        ("hidden = [16]", "hiden = [16]"),
        ("hidden = [16]", 'hidden = "wide"'),
        ("epochs = 1", "epoch = 1"),
        ("rounds = 2", "round = 2"),
        ("rounds = 2", "rounds = -2"),
        ("rounds = 2", "rounds = 2.5"),
        ("[local]", "[locl]"),
        ("clients = 8", "cliens = 8"),
        ("clients = 8", "clients = 0"),
        ('name = "fedprox"', 'name = "fedprx"'),
        ('name = "fedprox"', 'name = "fedavg"'),  # which has no mu
        ('name = "fedprox"', ""),  # FedAvg again
        ('name = "digits"', ""),
        ('name = "digits"', 'name = "digits"\nfolder = "x"'),
        ("seed = 4", 'engine = "bached"'),
    ],
)
def test_schema_and_check_reject_the_same(old, new):
    tables = tomllib.loads(GOOD.replace(old, new))
    assert not valid(tables, SCHEMA)
    with pytest.raises(ua.UnalikeError):
        config.check(tables)


# ---------------------------------------------------------------- files of one's own


def test_a_file_of_one_s_own_is_read_again_when_it_changes(tmp_path):
    file = tmp_path / "own.py"
    for width in (3, 44):
        file.write_text(f"WIDTH = {width}\n")
        assert config.from_file(f"{file}:WIDTH") == width
    file.write_text("raise SystemExit('enough')")
    with pytest.raises(ua.UnalikeError, match="failed: SystemExit: enough"):
        config.from_file(f"{file}:WIDTH")


def test_a_method_with_postponed_annotations(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from __future__ import annotations\nimport dataclasses\nfrom unalike import Method\n"
        "@dataclasses.dataclass(frozen=True)\nclass Mine(Method):\n    strength: float\n    name_of: str = 'x'\n"
    )
    table = {"file": f"{file}:Mine", "strength": 0.5}
    assert config.make_method(table).strength == 0.5
    assert config.method_settings(table)["strength"][0] is float
    with pytest.raises(ua.UnalikeError, match=r"cannot be made from .*strength"):
        config.make_method({"file": f"{file}:Mine"})


def test_a_generator_s_samples_dealt_anew():
    table = {"name": "synthetic-fedprox", "iid": True, "seed": 2}
    natural, dealt = (config.make_data({**table, **more}) for more in ({}, {"partition": "dirichlet:0.1"}))
    assert len(dealt) == len(natural) == 30
    rows = [fed.train.x.sum(1).sort().values for fed in (natural, dealt)]
    assert torch.equal(*rows)  # the same samples
    shares = [np.stack([np.bincount(fed.train.of(k)[1], minlength=10) for k in range(30)]) for fed in (natural, dealt)]
    skew = [(s.max(1) / s.sum(1)).mean() for s in shares]
    assert skew[1] > skew[0]
    held = config.make_data({**table, "partition": "iid", "test": 0.2, "validation": 0.1})
    assert held.test is not None and held.validation is not None
