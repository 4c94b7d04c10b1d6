"""Seeds of a method, and trials of learning rates, as one stack of clients."""

import pytest

from unalike.comparison import jobs, stacks
from unalike.engines.batched import lockstep
from unalike.errors import EngineRefused

DATA = {"name": "digits", "partition": "dirichlet:1.0", "clients": 6, "test": 0.2, "validation": 0.1}
RUN = {"rounds": 2, "clients_per_round": 3, "checkpoint_every": 10}
LOCAL = {"steps": 2, "batch_size": 8, "lr": 0.1}


def arm(method="fedavg", **changes):
    tables = {"data": DATA, "model": {"name": "linear"}, "method": {"name": method}, "local": LOCAL, "run": RUN}
    tables |= {name: {**tables[name], **more} for name, more in changes.items()}
    return jobs.Arm(method, method, "", tables)


@pytest.fixture
def widths(monkeypatch):
    """How many runs were made together, in order."""
    seen, plain = [], stacks.together
    monkeypatch.setattr(stacks, "together", lambda starts, tables: seen.append(len(starts)) or plain(starts, tables))
    return seen


def test_seeds_share_a_stack_and_keep_their_numbers(tmp_path, widths, monkeypatch):
    arms = [arm(), arm("scaffold")]
    answered, answer = [], lockstep.SharedStack.answer
    monkeypatch.setattr(
        lockstep.SharedStack, "answer", lambda s, group: answered.append(len(group)) or answer(s, group)
    )
    stacked = jobs.make(jobs.plan(arms, [0, 1, 2], tmp_path / "a"), jobs.Watch())
    assert widths == [3, 3] and answered == [3] * 4  # each round of each method is one call of three runs
    monkeypatch.setattr(stacks, "fits", lambda *_: False)
    plain = jobs.make(jobs.plan(arms, [0, 1, 2], tmp_path / "b"), jobs.Watch())
    assert widths[2:] == [1] * 6 and stacked.keys() == plain.keys()
    for key, outcome in plain.items():
        for one, two in zip(outcome.lines, stacked[key].lines, strict=True):
            assert two.get("train_loss", 0) == pytest.approx(one.get("train_loss", 0), rel=1e-5)


def test_a_finished_run_is_read_and_the_others_share_a_stack(tmp_path, widths):
    jobs.make(jobs.plan([arm()], [1], tmp_path), jobs.Watch())
    done = []
    watch = jobs.Watch()
    watch.done = lambda job, outcome, fresh: done.append((job.seed, fresh))
    jobs.make(jobs.plan([arm()], [0, 1, 2], tmp_path), watch)
    assert widths == [1, 2] and sorted(done) == [(0, True), (1, False), (2, True)]


def test_trials_that_differ_in_the_rate_share_a_stack(tmp_path, widths):
    jobs.tuned([arm(), arm("fedprox")], 3, 1, 5, tmp_path, jobs.Watch())
    assert widths == [1, 1, 1, 1]  # nobody said that the rate is free; fedprox's strength makes runs unlike
    free = [jobs.dc.replace(arm(), free_rate=True)]
    del widths[:]
    jobs.tuned(free, 3, 1, 5, tmp_path / "free", jobs.Watch())
    assert widths == [3]


@pytest.mark.parametrize(
    "changes",
    [{"run": {"engine": "sequential"}}, {"run": {"deterministic": True}}, {"model": {"name": "mlp", "hidden": [2000]}}],
)
def test_runs_that_are_made_one_by_one(tmp_path, changes):
    (job,) = jobs.plan([arm(**changes)], [0], tmp_path)
    assert not stacks.fits(job.tables, stacks.Kept().of(job.tables))
    (usual,) = jobs.plan([arm()], [0], tmp_path)
    assert stacks.fits(usual.tables, stacks.Kept().of(usual.tables))


def test_a_model_that_cannot_be_stacked_is_run_alone(monkeypatch):
    def refuses(*_):
        raise EngineRefused("no")

    monkeypatch.setattr(lockstep, "together", refuses)
    assert stacks.together([lambda: 1, lambda: 2], {"run": {}}) == [1, 2]


def test_data_are_kept_as_far_as_they_fit(monkeypatch):
    tables = [{"data": {**DATA, "seed": seed}} for seed in range(3)]
    kept = stacks.Kept()
    first = kept.of(tables[0])
    assert kept.of(tables[1]) is not first and kept.of(tables[0]) is first and kept.most > 100
    monkeypatch.setattr(stacks, "BYTES", 1)
    small = stacks.Kept()
    first = small.of(tables[0])
    assert small.of(tables[0]) is first and small.most == 1
    small.of(tables[1])
    assert small.of(tables[0]) is not first
