"""unalike as a plain Flower app: its two halves, with Flower's own messages between them and no process started."""

import tomllib

import pytest
import torch
from paths import ROOT
from small import federation
from test_network_messages import tables

from unalike import config
from unalike.network import one_machine, server
from unalike.settings.toml import dump_toml

pytest.importorskip("flwr")

EXAMPLE = ROOT / "examples" / "flower-app"


class Grid:
    """Flower's Grid as far as the app uses it; every message is answered by a ClientApp, as a SuperNode would."""

    def __init__(self, contexts, lose=()):
        from unalike.network.app import client_app

        self.app, self.contexts, self.lose = client_app, contexts, lose
        self.box = {}

    def get_node_ids(self):
        return list(reversed(self.contexts))

    def push_messages(self, messages):
        for number, message in enumerate(messages):
            name = f"{len(self.box)}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            reply = self.app()(message, self.contexts[node])  # a new app for every message: nothing stays in memory
            self.box[name] = None if node in self.lose and number else reply
            yield name

    def pull_messages(self, names):
        return [self.box[name] for name in list(names) if self.box[name] is not None]


@pytest.fixture
def grid(tmp_path, monkeypatch):
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):  # what Flower sets around a ServerApp
        monkeypatch.setattr(TaskIdentity, name, 1)
    contexts = {}
    for k, node in enumerate((101, 205, 309)):
        file = tmp_path / f"{k}.safetensors"
        one_machine.write_client(data(), k, file)
        (tmp_path / "policy.toml").write_text("least_batch = 1\nleast_steps = 1\n")
        settings = {"data": str(file), "state": str(tmp_path / f"state{k}"), "repeatable": True}
        settings["policy"] = str(tmp_path / "policy.toml")
        contexts[node] = Context(run_id=1, node_id=node, node_config=settings, state=RecordDict(), run_config={})
    return Grid(contexts)


def data():
    return federation(sizes=(8, 4, 12))


def simulated(settings):
    return config.run({**settings, "run": {**settings["run"], "engine": "sequential"}}, federation=data())


@pytest.mark.parametrize("method", ["scaffold", "fedfa"])
def test_a_server_app_and_client_apps(method, grid, tmp_path):
    from flwr.app import Context, RecordDict

    from unalike.network.app import server_app

    settings = tables(method, rounds=2, model={"classes": 3})
    file = tmp_path / "run.toml"
    file.write_text(dump_toml({**settings, "run": {**settings["run"], "folder": str(tmp_path / "run")}}))
    given = {"config": str(file), "nodes": 3, "deadline": 30.0}
    server_app()(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=given))
    import safetensors.torch

    *_, checkpoint = sorted((tmp_path / "run" / "checkpoint").glob("server-*.safetensors"))
    wanted = simulated(settings).server.w
    torch.testing.assert_close(safetensors.torch.load_file(checkpoint)["w"], wanted, rtol=1e-6, atol=1e-6)


def test_a_node_that_does_not_answer(grid):
    from unalike.network.app import GridLink

    nodes = sorted(grid.get_node_ids())
    link, keys = GridLink(grid, nodes), {f"node-{node}": str(node).encode() for node in nodes}
    settings, said = tables("scaffold", rounds=1, run={"evaluate_clients": "none"}), []
    grid.lose = {309}
    with pytest.raises(Exception, match="node-309 does not answer within 1 s"):
        server.run(settings, link, keys, deadline=1.0, classes=3, say=said.append)


def test_the_example_is_complete():
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]
    assert settings["config"].keys() == {"config", "nodes", "deadline"}  # those that the server's half reads
    for component in settings["components"].values():
        module, _, name = component.partition(":")
        assert f"\n{name} = " in (EXAMPLE / f"{module.replace('.', '/')}.py").read_text()
