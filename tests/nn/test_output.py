"""A model that returns a tuple, a dict or an object trains as the plain one, on every engine."""

from typing import NamedTuple

import pytest
import torch
from small import ENGINES, federation, model, refused, run, timeless

from unalike import config


class Parts(NamedTuple):
    aux: torch.Tensor
    logits: torch.Tensor


class Wrapped(torch.nn.Module):
    """The small model, whose output is one of several things."""

    def __init__(self, returns=dict):
        super().__init__()
        self.net, self.returns = model(), returns

    def forward(self, x):
        out = self.net(x)
        return {"logits": out, "aux": x} if self.returns is dict else Parts(x, out)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_trains_on_the_part_that_is_named(engine):
    plain = run(engine=engine, rounds=1, module=Wrapped().net)
    named = run(engine=engine, rounds=1, module=Wrapped(), output="logits")
    assert torch.equal(plain.server.w, named.server.w) and timeless(plain.history) == timeless(named.history)


@pytest.mark.parametrize(
    "returns,output", [(dict, lambda out: out["logits"]), (tuple, 1), (tuple, -1), (tuple, "logits")]
)
def test_a_part_by_function_position_and_attribute(returns, output):
    plain, named = run(rounds=1), run(rounds=1, module=Wrapped(returns), output=output)
    assert torch.equal(plain.server.w, named.server.w)


@pytest.mark.parametrize(
    "returns,output,words",
    [
        (dict, None, "2 samples gave dict. Say which part: output='logits', output=0 or a function"),
        (dict, "logit", "The model returned a dict of 'logits', 'aux', which has no 'logit'"),
        (dict, 0, "which has no 0"),
        (tuple, 2, "The model returned a Parts of 2, which has no 2"),
        (dict, True, "output=True must be a key"),
    ],
)
def test_what_is_no_part_is_one_line(returns, output, words):
    with refused(words):
        run(module=Wrapped(returns), output=output)


def test_it_is_a_fact_of_the_run(tmp_path):
    run(module=Wrapped(tuple), output=1, rounds=1, folder=tmp_path / "run")
    with refused("there model.output is 1, here 'logits'"):
        run(module=Wrapped(tuple), output="logits", rounds=1, folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize("output", ["logits", 1])
def test_from_a_config(tmp_path, output):
    (tmp_path / "net.py").write_text(
        "import torch\nclass Out(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.net = torch.nn.Linear(5, 3)\n"
        f"    def forward(self, x):\n        return {{{output!r}: self.net(x)}}\n"
    )
    tables = {"model": {"file": f"{tmp_path}/net.py:Out", "output": output}, "run": {"rounds": 1}}
    assert config.run(tables, federation=federation()).task.output == output
    with refused("output must be"):
        config.check({**tables, "data": {"name": "digits"}, "model": {**tables["model"], "output": 1.5}})
