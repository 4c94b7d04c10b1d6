"""What a client's owner allows, against plans and requests that a hostile server makes."""

import argparse
import re
import tomllib
from pathlib import Path

import pytest
import torch
from asked import LOCAL, OTHER, RUN, P, ask, client, judge, plan, samples, tell, told
from small import refused

import unalike as ua
from unalike.models import MODELS
from unalike.network import policy
from unalike.network.plans import network_digest
from unalike.network.policy import Policy, digest
from unalike.settings.typed import hints

DOCS = Path(__file__).parents[2] / "docs" / "federation.md"

# ---------------------------------------------------------------- few samples


FEW = {
    "one step on one sample": {"steps": 1, "batch_size": 1},
    "many steps on one sample": {"steps": 64, "batch_size": 1},
    "passes over single samples": {"epochs": 1, "batch_size": 1},
    "a list with a number for each client": {"steps": [9, 1, 9, 9], "batch_size": 8},
    "a share of a pass": {"epochs": 0.02, "batch_size": 8},
    "a step on seven": {"steps": 40, "batch_size": 7},
    "three steps on eight": {"steps": 3, "batch_size": 8},
    "a pass that leaves one": {"epochs": 1, "batch_size": 39},
    "steps that reach the one that is left": {"steps": 2, "batch_size": 39},
    "more momentum than samples": {"steps": 1, "batch_size": 2, "momentum": 0.9},
}


@pytest.mark.parametrize("name", FEW)
def test_a_plan_with_few_samples_a_step_is_refused(name, tmp_path):
    reason = told(client(tmp_path), local=FEW[name])
    assert re.search(r"`least_(batch|steps) = \d+` in its policy, or --least-(batch|steps) \d+, allows it", reason)


ENOUGH = [LOCAL, {"steps": 1, "batch_size": "full"}, {"steps": 1, "batch_size": 39}, {"epochs": 1, "batch_size": 9}]
ENOUGH += [{"epochs": 1, "batch_size": 39, "drop_last": True}, {"steps": 2, "batch_size": 16}]


@pytest.mark.parametrize("local", ENOUGH)
def test_a_plan_with_enough_is_taken(local, tmp_path):
    assert not told(client(tmp_path), local=local)
    assert ask(client(tmp_path / "b", least_batch=8), run=RUN)[0]["kind"] == "error"  # that one has no plan


@pytest.mark.parametrize("count", [1, 7])
def test_a_client_with_few_samples_does_not_train_on_all_of_them(count, tmp_path):
    one = client(tmp_path, samples(count))
    assert f"steps on {count} of this client's samples" in told(one, local={"epochs": 50, "batch_size": "full"})


def test_what_the_refusal_names_allows_it(tmp_path):
    given = {"local": {"steps": 1, "batch_size": 1}}
    assert "least_batch = 1" in told(client(tmp_path / "a"), **given)
    assert "least_steps = 1" in told(client(tmp_path / "b", least_batch=1), **given)
    assert not told(client(tmp_path / "c", least_batch=1, least_steps=1), **given)


OWN = """
import dataclasses, torch
import unalike as ua

@dataclasses.dataclass(frozen=True)
class Sly(ua.Method):
    way: str = "train"

    def client(self, me, s, m):
        one = torch.zeros(1, dtype=torch.int64)
        if self.way == "train":
            return me.train(m.w, steps=1, batch_size=1).then(self.done)
        if self.way == "rows":
            return me.train(m.w, only=one).then(self.done)
        if self.way == "copies":
            return me.train(m.w, only=one.repeat(64)).then(self.done)
        if self.way == "most":
            return me.train(m.w, only=torch.cat([one.repeat(100), torch.arange(40)])).then(self.done)
        if self.way == "gradient":
            return ua.contract.requests.Gradient(m.w, only=one).then(self.done)
        return me.average(lambda batch: batch.losses, m.w, only=one).then(self.first)

    def first(self, me, s, m, value):
        return {}, {"delta": m.w + value}

    def done(self, me, s, m, vector):
        return {}, {"delta": vector - m.w}

    def round(self, server, cohort):
        server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")
"""


@pytest.mark.parametrize("way", ["train", "rows", "copies", "most", "gradient", "average"])
def test_a_methods_own_work_on_single_samples_is_refused(way, tmp_path):
    file = tmp_path / "sly.py"
    file.write_text(OWN)
    given = {"method": {"file": "sly.py:Sly", "way": way}, "files": {"sly.py": digest(file)}}
    answers = []
    for least in (8, 1):
        here = client(tmp_path / str(least), files=(file,), least_batch=least, least_steps=1)
        assert not told(here, **given)
        method = here._nodes[RUN].job.method
        answers.append(ask(here, method=method)[0])
    assert "--least-batch 1, allows it" in answers[0]["reason"] and answers[1]["kind"] == "reply"


@pytest.mark.parametrize(("count", "answered"), [(7, False), (8, True)])
def test_scores_on_few_samples_do_not_leave(count, answered, tmp_path):
    here = client(tmp_path, samples(test=count))
    assert not told(here)
    header, _ = judge(here)
    assert header["kind"] == ("reply" if answered else "error")
    assert answered or "numbers over 7 of this client's samples" in header["reason"]


def test_sums_over_few_samples_do_not_leave(tmp_path):
    asked = {"kind": "prepare", "version": ua.__version__, "recipe": {}}
    assert "sums over 5 of this client's samples" in tell(client(tmp_path, samples(5)), asked)[0]["reason"]


@pytest.mark.parametrize("knobs", [{"group": 1}, {"group": 7}, {"group": 10, "short": "own"}])
def test_means_of_few_samples_do_not_leave(knobs, tmp_path):
    here = client(tmp_path, methods=("fedmix",))
    assert "--least-batch" in told(here, method={"name": "fedmix", **knobs})
    assert not told(here, method={"name": "fedmix", "group": 10})


@pytest.mark.parametrize("name", ["fedproto", "ccvr", "fd"])
def test_sums_over_the_few_samples_of_a_class_do_not_leave(name, tmp_path):
    """Of a linear model the features are the sample itself, and of class 2 there is one."""
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    y[7] = 2
    one = ua.Federation.from_arrays([(x, y)], classes=3)
    assert "of a class over fewer than 8 of this client's samples" in told(
        client(tmp_path / "a", one), method={"name": name}
    )
    assert not told(client(tmp_path / "b"), method={"name": name})


def test_a_sample_that_a_server_has_copied_does_not_fill_the_batches(tmp_path):
    """Astraea's server says how many copies of each class a client trains on: here of the only sample of class 2."""
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    y[7] = 2
    here = client(tmp_path, ua.Federation.from_arrays([(x, y)], classes=3))
    assert not told(here, method={"name": "astraea"})
    copies = torch.zeros(3, 500)
    copies[2] = 1
    header, _ = ask(here, method=here._nodes[RUN].job.method, copies=copies)
    assert "steps on 1 of this client's samples" in header["reason"]


def test_public_samples_in_a_batch_do_not_count(tmp_path):
    """Whoever has the public set too can take its gradients away: of 16, four are the client's own."""
    own = samples(10)
    public = (torch.randn(30, 5), torch.zeros(30, dtype=torch.int64))
    here = client(tmp_path, own.replace(public=public))
    method = {"name": "data-sharing", "share": 1.0}
    given = {"method": method, "public": here.data.public_fingerprint(), "local": {"steps": 9, "batch_size": 16}}
    assert not told(here, **given)  # 10 of its own samples are a batch: what the method mixes in, is seen when it asks
    header, _ = ask(here, method=here._nodes[RUN].job.method, share=torch.arange(30))
    assert "steps on 4 of this client's samples" in header["reason"]


# ---------------------------------------------------------------- paths


PATHS = [
    {"name": "tweet-lstm", "vectors": "/any/file.npy"},
    {"name": "tweet-lstm", "vectors": "file.npy"},
    {"name": "resnet18", "weights": "there.pth"},
    {"name": "resnet18", "weights": "../there.pth"},
    {"name": "cnn-small", "norm": "/etc/passwd"},
    {"name": "linear", "loss": "/etc/passwd:thing"},
    {"name": "linear", "metrics": ["~/a"]},
    {"name": "linear", "head": "..\\a"},
]


@pytest.mark.parametrize("model", PATHS)
def test_no_path_of_a_plan_is_opened(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = client(tmp_path / "state")
    before = told(here, model=model)
    assert "a client opens no path from a plan" in before
    (tmp_path / "file.npy").write_bytes(b"x")
    (tmp_path / "there.pth").write_bytes(b"x")
    assert told(here, model=model) == before  # it says the same whether there is such a file


def test_several_networks_bring_no_path_either(tmp_path):
    tables = plan()["tables"] | {"models": {"a": {"name": "resnet18", "weights": "w.pth"}}, "model": {}}
    assert "no path from a plan" in told(client(tmp_path), tables=tables, settings={"architecture": "a:4"})


def test_every_option_of_a_model_that_is_a_file_says_so():
    """Texts that are no files are few and known: a new one must say what it is."""
    texts = {(n, k) for n, m in MODELS.items() for k, s in hints(m).items() if "str" in str(s.hint) and not s.knob.file}
    assert texts == {("cnn-small", "norm"), ("resnet18", "norm"), ("resnet18", "stem")}


# ---------------------------------------------------------------- what a plan may say


@pytest.mark.parametrize("name", ["classes", "preparation", "tables", "files", "run", "mean", "client", "clients"])
def test_a_plan_that_lacks_a_part(name, tmp_path):
    whole = plan()
    del whole[name]
    header, _ = tell(client(tmp_path), {"kind": "plan", "run": RUN, "plan": whole})
    assert f"The plan's {name} is None, which cannot be" in header["reason"]


@pytest.mark.parametrize("model", [{"name": []}, {"name": {}}, {"name": None}, []])
def test_a_model_without_a_name_is_one_line(model, tmp_path):
    said = []
    here = client(tmp_path, said=said)
    assert told(here, model=model or ["linear"]) and not any("Traceback" in text for text in said)


def noisy(*stages):
    return {"channel": [*stages]}


CLIP, NOISE = {"kind": "clip", "norm": 1.0}, {"kind": "local-noise", "multiplier": 1.0}
PLANS = {
    "another method": ({"methods": ("scaffold",)}, {}, "this client runs scaffold only"),
    "a stage": ({"channels": ("clip",)}, {"settings": noisy(CLIP, NOISE)}, "policy allows clip only"),
    "less noise": ({"least_noise": 1.5}, {"settings": noisy(CLIP, NOISE)}, "of at least 1.5 times the clip"),
    "no noise": ({"least_noise": 0.1}, {"settings": noisy(CLIP)}, "of at least 0.1 times the clip"),
    "the server's noise": (
        {"least_noise": 0.1},
        {
            "settings": noisy(CLIP, {"kind": "noise", "multiplier": 2.0}),
            "method": {"name": "fedavg", "weights": "uniform"},
        },
        "of at least 0.1 times the clip",
    ),
    "a field": ({"fields": ("delta",)}, {}, "send 'training_loss', and its policy lets delta leave"),
    "another field": ({"fields": ("training_loss",)}, {}, "send 'delta', and its policy"),
    "few clients": ({"least_cohort": 5}, {}, "The run has 4 clients; this client takes part among 5"),
    "a network": ({"models": ("0" * 16,)}, {}, "which is not among this client's"),
    "many steps": ({"max_steps": 3}, {}, "which does 3 at most"),
    "many steps by default": ({}, {"local": {"steps": 100_001, "batch_size": 8}}, "does 100000 at most"),
    "a huge network": ({}, {"model": {"name": "mlp", "hidden": [10**6, 10**6]}}, "1,000,010,000,003 numbers"),
    "many classes": ({}, {"classes": (1 << 31) - 1}, "12,884,901,882 numbers"),
    "samples": ({"methods": ("xormixfl",)}, {"method": {"name": "xormixfl"}}, "by --allow-samples"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_the_owner_does_not_want(name, tmp_path):
    settings, given, words = PLANS[name]
    here = client(tmp_path, **settings)
    assert words in told(here, **given)
    assert not here.runs.names and not (tmp_path / RUN).exists()


def test_what_the_owner_does_want(tmp_path):
    network = network_digest(ua.models.build("linear", features=5, classes=3))
    settings = {"methods": ("fedavg",), "channels": ("clip", "local-noise"), "require": ("clip:2.0",)}
    settings |= {"fields": ("delta",), "models": (network,), "least_cohort": 4, "least_noise": 1.0, "max_steps": 4}
    method = {"name": "fedavg", "weights": "uniform"}
    assert not told(client(tmp_path, **settings), settings=noisy(CLIP, NOISE), method=method)


@pytest.mark.parametrize(
    ("settings", "answered"), [({}, True), ({"allow_evaluation": False}, False), ({"least_noise": 1.0}, False)]
)
def test_scores_leave_if_the_owner_wants_it(settings, answered, tmp_path):
    here = client(tmp_path, **settings)
    noise = {"settings": noisy(CLIP, NOISE), "method": {"name": "fedavg", "weights": "uniform"}}
    assert not told(here, **(noise if "least_noise" in settings else {}))
    header, _ = judge(here)
    assert (header["kind"] == "reply") is answered
    assert answered or "evaluat" in header["reason"]


# ---------------------------------------------------------------- how often


def fresh(number):
    """Other weights, so that it is another request."""
    return torch.full((P,), float(number))


def test_exchanges_of_one_round_are_counted_whatever_their_numbers(tmp_path):
    here = client(tmp_path, max_exchanges=3)
    told(here)
    kinds = [ask(here, exchange=e, w=fresh(n))[0]["kind"] for n, e in enumerate((0, 1, 2, 2, 1))]
    assert kinds == ["reply"] * 3 + ["error"] * 2
    assert (
        "exchange 1048577 of round 1 of this client, whose policy has max_exchanges = 3"
        in ask(here, 0, 1 << 20)[0]["reason"]
    )
    assert ask(here, round=1)[0]["kind"] == "reply"


def test_a_round_begins_again_a_few_times(tmp_path):
    here = client(tmp_path, max_repeats=1)
    told(here)
    answers = [ask(here, w=fresh(n))[0] for n in range(3)]
    assert [answer["kind"] for answer in answers] == ["reply", "reply", "error"]
    assert "a new beginning of round 1 of this client, whose policy has max_repeats = 1" in answers[2]["reason"]


def test_the_same_request_is_no_further_answer(tmp_path):
    here = client(tmp_path, max_repeats=0, max_exchanges=1)
    told(here)
    first = ask(here)
    again = ask(here)
    assert again[0] == first[0] and torch.equal(again[1]["delta"], first[1]["delta"])


def test_evaluations_of_one_round_are_counted(tmp_path):
    here = client(tmp_path, max_exchanges=2, max_repeats=0)
    told(here)
    assert [judge(here)[0]["kind"] for _ in range(3)] == ["reply", "reply", "error"]
    assert judge(here, round=1)[0]["kind"] == "reply"


def test_what_was_counted_is_known_after_a_restart(tmp_path):
    here = client(tmp_path, max_rounds=2, max_exchanges=1, max_repeats=0)
    told(here)
    assert [ask(here, round=r)[0]["kind"] for r in (0, 1, 2)] == ["reply", "reply", "error"]
    here.close()
    again = client(tmp_path, max_rounds=2, max_exchanges=1, max_repeats=0)
    assert "one round more of this client, which answers 2 at most" in ask(again, round=7)[0]["reason"]
    assert "max_repeats = 0" in ask(again, round=0, w=fresh(1))[0]["reason"]


def test_runs_at_most_and_one_at_a_time(tmp_path):
    here = client(tmp_path, max_runs=2)
    assert not told(here) and not told(here)  # the same run once more
    assert ask(here)[0]["kind"] == "reply"
    second = tell(here, {"kind": "plan", "run": OTHER, "plan": plan()})[0]
    assert second["kind"] == "reply"
    assert f"one run at a time, now {OTHER}, and not {RUN}" in ask(here, run=RUN)[0]["reason"]
    third = tell(here, {"kind": "plan", "run": "a" * 16, "plan": plan()})[0]
    assert "has taken part in 2 runs" in third["reason"]
    assert ask(here, run=OTHER)[0]["kind"] == "reply"  # which goes on


def test_old_runs_are_forgotten(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    here = client(tmp_path / "state", keep_runs=2)
    for number in range(5):
        assert tell(here, {"kind": "plan", "run": f"{number:016x}", "plan": plan()})[0]["kind"] == "reply"
    assert sorted(f.name for f in (tmp_path / "state").iterdir() if f.is_dir()) == [f"{n:016x}" for n in (3, 4)]
    assert [*here._nodes] == [f"{4:016x}"]  # one in memory
    (tmp_path / "state" / f"{3:016x}" / "plan.json").unlink()
    (tmp_path / "state" / f"{3:016x}").rmdir()
    (tmp_path / "state" / f"{3:016x}").symlink_to(outside)
    assert tell(here, {"kind": "plan", "run": "9" * 16, "plan": plan()})[0]["kind"] == "reply"
    assert (outside / "mine.txt").exists()


def test_a_folder_that_is_new_is_said(tmp_path):
    assert "is new, or not the folder that it began with. Put that back (--state)" in ask(client(tmp_path))[0]["reason"]


# ---------------------------------------------------------------- the person


def test_a_person_is_asked_before_anything_leaves(tmp_path):
    shown, answers = [], iter([True, False, True, False, True])
    policy_ = Policy(ask=True)
    here = ua.network.client.Client(
        samples(), tmp_path, policy_, "cpu", ask=lambda words: shown.append(words) or next(answers)
    )
    hello = {"kind": "hello", "version": ua.__version__}
    assert tell(here, hello)[0]["facts"]["sizes"]["train"] == 40 and "40 for train" in shown[0]
    assert tell(here, hello)[0]["kind"] == "reply" and len(shown) == 1  # agreed to
    recipe = ua.data.preparation.Recipe.of(None, 5).plain()
    sums = {"kind": "prepare", "version": ua.__version__, "recipe": recipe}
    assert "did not say yes" in tell(here, sums)[0]["reason"] and "sums over the 40 training samples" in shown[1]
    assert tell(here, sums)[0]["kind"] == "reply"
    assert "did not say yes" in told(here) and not (tmp_path / RUN).exists()
    assert "FedAvg" in shown[3] and "delta: [18]" in shown[3] and "4 steps, batches of 8" in shown[3]
    assert not told(here) and not told(here) and len(shown) == 5
    with refused("there is nobody to be asked"):
        ua.network.client.Client(samples(), tmp_path / "other", policy_, "cpu")


# ---------------------------------------------------------------- files and flags


def parsed(*words):
    parser = argparse.ArgumentParser()
    policy.arguments(parser)
    return policy.policy_of(parser.parse_args(words))


def test_flags_and_files_are_the_same_settings(tmp_path):
    file = tmp_path / "policy.toml"
    (tmp_path / "own.py").write_text("")
    file.write_text('methods = ["fedavg"]\nmax_steps = 50\nfiles = ["own.py"]\nask = true\n')
    found = parsed("--policy", str(file), "--max-steps", "7", "--no-ask", "--require", "clip:1.0,local-noise")
    assert found == Policy(
        methods=("fedavg",), max_steps=7, files=(tmp_path / "own.py",), ask=False, require=("clip:1.0", "local-noise")
    )
    assert parsed("--allow-samples", "--methods", "fedavg,fedmix", "--file", str(tmp_path / "own.py")) == Policy(
        allow_samples=True, methods=("fedavg", "fedmix"), files=(tmp_path / "own.py",)
    )
    assert Policy.of(tomllib.loads(ua.settings.toml.dump_toml(found.plain())), "again") == found


WRONG = {
    "max_step = 3": "has no setting 'max_step'. Did you mean 'max_steps'?",
    "least_batch = 0": "least_batch must be a whole number of at least 1; got 0",
    "least_batch = 'many'": "least_batch must be a whole number; got 'many'",
    "methods = 'fedavg'": "methods must be a list of texts; got 'fedavg'",
    "methods = ['fedvag']": "There is no method 'fedvag'. Did you mean 'fedavg'",
    "channels = ['clap']": "There is no stage 'clap'. Did you mean 'clip'",
    "files = ['none.py']": "There is no file",
    "[policy]": "has no setting 'policy'",
    "ask =": "is not TOML",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_with_mistakes_is_one_line(text, tmp_path):
    (tmp_path / "policy.toml").write_text(text)
    with refused(WRONG[text]):
        parsed("--policy", str(tmp_path / "policy.toml"))


def test_the_example_of_the_docs_is_a_policy_with_every_setting(tmp_path):
    (text,) = re.findall(r"```ini\n(# policy.toml.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "own.py").write_text("")
    (tmp_path / "policy.toml").write_text(text)
    settings = policy.read_policy(tmp_path / "policy.toml")
    Policy.of(settings, "the docs")
    assert {*settings} == {*hints(Policy)} - {"repeatable"}
