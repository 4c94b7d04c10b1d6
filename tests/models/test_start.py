"""Where a run's model starts: from the run's seed, unless its weights are somebody's own."""

import copy
import functools
import pickle

import pytest
import torch
from small import LOCAL, federation, refused
from test_models import EXAMPLES
from torch import nn

import unalike as ua
from unalike import config
from unalike.models import MODELS, build, keep_start, start
from unalike.run.run import Run


def begun(module, **changes) -> Run:
    """The run before its first round."""
    return ua.simulate(module, federation(), ua.FedAvg(), **{"rounds": 0, "local": LOCAL, "device": "cpu", **changes})


def weights(module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.fixture
def own_start():
    """What the command line starts from with seed 4."""
    return config.make_model({"name": "mlp", "hidden": [4]}, federation(), 4)


def mlp():
    return ua.models.mlp(5, (4,), classes=3)


@pytest.mark.parametrize(
    "change", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), nn.Module.eval]
)
def test_an_untouched_model_starts_from_the_run_s_seed(own_start, change):
    torch.manual_seed(0)
    given = change(mlp())
    before = weights(given)
    assert torch.equal(weights(begun(given, seed=4).model), weights(own_start))
    assert torch.equal(weights(given), before)  # the user's own is not written to
    assert not torch.equal(weights(begun(given, seed=5).model), weights(own_start))


def test_in_float64_too(own_start):
    assert torch.equal(weights(begun(mlp().double(), seed=4, dtype="float64").model), weights(own_start.double()))


@pytest.mark.parametrize("build", [mlp, functools.partial(ua.models.mlp, 5, (4,), classes=3), lambda: mlp().double()])
def test_what_a_function_builds_starts_from_the_run_s_seed(own_start, build):
    assert torch.equal(weights(begun(build, seed=4).model), weights(own_start))


def test_a_class_and_a_module_of_one_s_own():
    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 3))

    first = begun(Net, seed=4).model
    assert torch.equal(weights(first), weights(begun(Net, seed=4).model))
    given = Net()
    assert torch.equal(weights(begun(given).model), weights(given))


def test_building_and_starting_leave_torch_s_generator_alone():
    torch.manual_seed(3)
    given, after = mlp(), torch.get_rng_state()
    begun(given)
    begun(mlp)
    assert torch.equal(torch.get_rng_state(), after)


def touched():
    """Models whose weights are no longer those that they drew, each changed in another way."""
    loaded, manual, single, kept = mlp(), mlp(), mlp(), keep_start(mlp())
    loaded.load_state_dict(mlp().state_dict())
    nn.init.zeros_(manual.head.weight)
    single.fc1.bias.data[-1] += 1e-3
    other_head = mlp()
    other_head.head = nn.Linear(4, 3)
    return {"loaded": loaded, "manual": manual, "single": single, "other_head": other_head, "kept": kept}


@pytest.mark.parametrize("how", touched())
def test_weights_of_one_s_own_are_kept(how):
    given = touched()[how]
    assert torch.equal(weights(begun(given).model), weights(given))


def test_frozen_layers_stay_frozen_and_layers_put_in_stay():
    given = mlp()
    given.fc1.requires_grad_(False)
    given.relu1 = nn.Tanh()
    run = begun(given, rounds=1, seed=4)
    assert isinstance(run.model.relu1, nn.Tanh) and torch.equal(
        run.model.fc1.weight, begun(mlp, seed=4).model.fc1.weight
    )


def test_every_model_remembers_how_it_was_built():
    for name, options, _, _ in EXAMPLES:
        made = build(name, **options)
        built = start.untouched(made)
        assert built.name == name and built.options == options
        assert start.untouched(start.redrawn(made, lambda b=built: MODELS[b.name](**b.options), 0)) is None


def test_a_class_made_from_one_of_ours_is_one_s_own():
    class Mine(ua.models.FourierFeatures):
        pass

    assert start.built_as(Mine(5, 3)) is None and start.built_as(ua.models.FourierFeatures(5, 3)) is not None


def test_a_model_without_values_is_not_remembered_by_them():
    with torch.device("meta"):
        assert start.untouched(mlp()) is None


def test_linear_is_the_command_line_s():
    assert torch.equal(
        weights(begun(ua.models.linear(5, 3), seed=2).model),
        weights(config.make_model({"name": "linear"}, federation(), 2)),
    )


def test_functions_that_build_no_model_are_one_line():
    with refused(r"mlp\(\) does not build a model: .*missing.*features.*`lambda: mlp\(...\)`"):
        begun(ua.models.mlp)
    with refused(r"must return a torch.nn.Module; it returned int"):
        begun(lambda: 3)
    with refused("must be a torch.nn.Module; got str"):
        begun("mlp")


def test_another_start_says_what_to_do(tmp_path):
    begun(nn.Linear(5, 3), folder=tmp_path / "run")
    with refused(r"The model's start differs: pass a function that builds the model .*or call torch.manual_seed"):
        begun(nn.Linear(5, 3), folder=tmp_path / "run", resume=True)
    begun(lambda: nn.Linear(5, 3), folder=tmp_path / "built")
    begun(lambda: nn.Linear(5, 3), folder=tmp_path / "built", resume=True)
