"""What a run records, and what a report makes of it (the page itself: test_report_browser.py)."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import unalike as ua
from unalike import config, report
from unalike.cli import main
from unalike.config import flags
from unalike.errors import Diverged, UnalikeError
from unalike.metrics import Drift
from unalike.metrics.lines import thin
from unalike.metrics.names import NUMBERS, of
from unalike.report import page, read, record

LABELLED = [key for key in NUMBERS if of(key).source != "bookkeeping" and not key.startswith("selected")]
HOSTILE = "</script><img src=x onerror=alert(1)>"


def settings(folder: Path, method: str = "fedavg", seed: int = 0, **run) -> dict:
    return {
        "data": {"name": "digits", "partition": "dirichlet:0.3", "clients": 8, "test": 0.2},
        "model": {"name": "linear"},
        "method": {"name": method},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
        "run": {"rounds": 4, "clients_per_round": 0.5, "seed": seed, "folder": str(folder), **run},
    }


def content(file: Path) -> dict:
    """The numbers inside a page."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text(), re.S)
    return json.loads(text.group(1))


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Two methods, two seeds."""
    home = tmp_path_factory.mktemp("compared")
    for method, seed in itertools.product(("fedavg", "scaffold"), (0, 1)):
        config.run(settings(home / f"{method}-{seed}", method, seed, evaluate_clients=6), callbacks=[report.Record()])
    return home


# ---------------------------------------------------------------- drift


def test_drift_is_that_of_all_pairs():
    updates = torch.randn(7, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drift = Drift()
    drift.add(updates[:3])
    drift.add(updates[3:])
    pairs = [torch.nn.functional.cosine_similarity(a, b, dim=0) for a, b in itertools.combinations(updates, 2)]
    found = drift.numbers()
    assert found["drift_cosine"] == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-12)
    assert found["drift_mean"] == pytest.approx(float(updates.norm(dim=1).mean()))
    assert found["drift_max"] == pytest.approx(float(updates.norm(dim=1).max()))


def test_drift_by_hand():
    """(3, 4) and (4, 3): sizes 5, cosine 24/25; the zero has no direction and pulls the mean size to 10/3."""
    drift = Drift()
    drift.add(torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]]))
    found = drift.numbers()
    assert found["drift_cosine"] == pytest.approx(0.96, abs=1e-6)
    assert (found["drift_mean"], found["drift_max"]) == (pytest.approx(10 / 3), 5.0)
    one = Drift()
    one.add(torch.tensor([[3.0, 4.0]]))
    assert one.numbers()["drift_cosine"] is None
    assert Drift().numbers() == {}


# ---------------------------------------------------------------- what a run records


def test_record_holds_the_clients_values(tmp_path):
    run = config.run(settings(tmp_path / "r", evaluate_clients=5), callbacks=[report.Record()])
    who = json.loads((tmp_path / "r/record/clients.json").read_text())
    assert who["labels"] == run.data.label_counts().tolist()
    lines = [json.loads(line) for line in (tmp_path / "r/record/rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    accuracy = record.unpack(lines[-1]["accuracy"])
    known = ~np.isnan(accuracy)
    assert np.array_equal(np.flatnonzero(known), run.client_values["client"]) and known.sum() == 5
    np.testing.assert_allclose(accuracy[known], run.client_values["accuracy"], rtol=1e-6)
    assert ["features" in line for line in lines] == [True, False, True, False]
    assert json.loads((tmp_path / "r/record/last.json").read_text())["round"] == 4


@pytest.mark.parametrize("engine", ["sequential", "batched", "workers", "loopback"])
def test_drift_of_a_run_is_that_of_its_updates(tmp_path, engine):
    """FedAvg's first round again, by a method that reads every update."""
    base = settings(tmp_path / engine, engine=engine, clients_per_round=1.0, rounds=1)
    base["data"]["clients"] = 3
    config.run(base, callbacks=[report.Record()])
    line = json.loads((tmp_path / engine / "record/rounds.jsonl").read_text())

    class Keep(ua.Method):
        sends = {"delta": ua.Field(read="each")}

        def round(self, server, cohort):
            updates.append(cohort.call(self.client, w=server.w).each("delta"))

    updates: list[torch.Tensor] = []
    fed = config.make_data(base["data"])
    ua.simulate(
        config.make_model(base["model"], fed, 0),
        fed,
        Keep(),
        rounds=1,
        local=config.make_local(base["local"]),
        engine="sequential",
        evaluate_clients="none",
    )
    drift = Drift()
    drift.add(torch.cat(updates))
    for name, value in drift.numbers().items():
        assert line[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_features_are_principal_components(tmp_path):
    """A linear model's features are its inputs: compare with the singular vectors of the clients' mean inputs."""
    run = config.run(settings(tmp_path / "r", rounds=1), callbacks=[report.Record()])
    last = json.loads((tmp_path / "r/record/last.json").read_text())
    means = torch.stack([run.data.train.of(k)[0][:20].flatten(1).mean(0) for k in range(8)]).double().numpy()
    means -= means.mean(0)
    u, s, _ = np.linalg.svd(means, full_matrices=False)
    points = record.unpack(last["features"]).reshape(-1, 2)
    np.testing.assert_allclose(np.abs(points), np.abs(u[:, :2] * s[:2]), atol=1e-4)
    np.testing.assert_allclose(last["explained"], (s**2 / (s**2).sum())[:2], atol=1e-6)


def test_a_last_picture_that_is_older_keeps_its_place(tmp_path):
    """A run continued from round 2 and killed in round 4: last.json is still that of round 2."""
    config.run(settings(tmp_path / "r"), callbacks=[report.Record()])
    file = tmp_path / "r/record/last.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "round": 2}))
    assert [p["round"] for p in content(report.write(tmp_path / "r"))["runs"][0]["features"]] == [1, 2, 3]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_record_of_a_resumed_run_is_the_same_bytes(tmp_path, stop):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config.run(settings(whole), callbacks=[report.Record()])
    config.run(settings(parts, rounds=stop), callbacks=[report.Record()])
    with (parts / "record/rounds.jsonl").open("a") as file:  # of a round whose checkpoint was not written
        file.write('{"round": 9, "drift_mean": 1.0}\n{"rou')
    config.run(settings(parts, resume=True), callbacks=[report.Record()])
    for name in ("clients.json", "rounds.jsonl", "last.json"):
        assert (whole / "record" / name).read_bytes() == (parts / "record" / name).read_bytes(), name


def test_recording_changes_no_result(tmp_path):
    plain = config.run(settings(tmp_path / "a"))
    recorded = config.run(settings(tmp_path / "b"), callbacks=[report.Record()])
    assert torch.equal(plain.server.w, recorded.server.w)


def test_record_without_a_folder_says_so():
    table = settings(Path("unused"))
    del table["run"]["folder"]
    with pytest.raises(UnalikeError, match=r"give folder=\.\.\."):
        config.run(table, callbacks=[report.Record()])


def test_many_clients_are_recorded_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MOST_CLIENTS", 5)
    monkeypatch.setattr(record, "MOST_POINTS", 4)
    config.run(settings(tmp_path / "r", evaluate_clients=6), callbacks=[report.Record()])
    who = json.loads((tmp_path / "r/record/clients.json").read_text())
    last = json.loads((tmp_path / "r/record/last.json").read_text())
    assert who["population"] == 8 and len(who["client"]) == 5 and len(last["places"]) == 4
    data = content(report.write(tmp_path / "r"))
    assert len(data["runs"][0]["values"]) == 5


@pytest.mark.parametrize("method", ["local-only", "centralized", "fednova", "rfedavg-plus", "fedfa", "flhc"])
def test_methods_that_send_other_things(tmp_path, method):
    config.run(settings(tmp_path / "r", method), callbacks=[report.Record()])
    lines = [json.loads(line) for line in (tmp_path / "r/record/rounds.jsonl").read_text().splitlines()]
    assert ("drift_mean" in lines[0]) == (method != "local-only")
    assert content(report.write(tmp_path / "r"))["runs"][0]["rounds"] == 4


# ---------------------------------------------------------------- what a report reads


def test_seeds_are_one_group_and_the_summary_is_over_them(compared):
    data = content(report.write(compared))
    assert [g["label"] for g in data["groups"]] == ["fedavg", "scaffold"]
    assert [g["runs"] for g in data["groups"]] == [[0, 1], [2, 3]]
    finals = [json.loads((compared / f"fedavg-{s}/rounds.jsonl").read_text().splitlines()[-1]) for s in (0, 1)]
    values = [line["test_accuracy"] for line in finals]
    assert data["summary"]["rows"][0]["cells"]["test_accuracy"] == [
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values, ddof=1)),
    ]
    assert len(data["clients"]) == 1  # one split, shown once


def test_what_leaves_a_client_is_recorded_and_shown(compared):
    said = {p["label"]: p["leaves"] for p in content(report.write(compared))["privacy"]}
    assert said["fedavg"] == "its change of the model (the server reads the sum only)" and "control" in said["scaffold"]


def test_a_channel_its_bytes_and_who_sees_what(tmp_path):
    for channel in ("none", "clip:1.0,topk:0.1"):
        table = settings(tmp_path / channel.replace(":", "-"))
        table["run"]["channel"] = channel
        config.run(table, callbacks=[record.Record()])
    run = tmp_path / "clip-1.0,topk-0.1"
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    lines[-1] |= {"epsilon": 3.0, "epsilon_pld": 2.5}
    who = json.loads((run / "record/clients.json").read_text())
    (run / "record/clients.json").write_text(json.dumps(who | {"delta": 1e-5}))
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = content(report.write(tmp_path))
    plain, through = sorted(data["privacy"], key=lambda p: len(p["channel"]))
    assert through["label"] == "fedavg, channel = clip:1.0,topk:0.1" and plain["label"] == "fedavg"
    assert (through["channel"], plain["channel"]) == (["clip:1.0", "topk:0.1"], [])
    assert through["plain"] == plain["up"] > 4 * through["up"] > 0 and plain["plain"] is None
    assert (through["epsilon"], through["delta"], plain["epsilon"]) == (2.5, 1e-5, None)
    assert ["the server", "topk:0.1"] in [row[:2] for row in through["sees"]] and plain["sees"][0][0] == "the server"
    assert "epsilon" in [column["key"] for column in data["summary"]["columns"]]
    assert 2.5 in [row["cells"].get("epsilon", [None])[0] for row in data["summary"]["rows"]]  # one ε on the page
    assert "bytes_up_plain" not in [metric["key"] for metric in data["metrics"]]


def test_namesakes_are_told_apart(tmp_path):
    for mu in (0.1, 1.0):
        table = settings(tmp_path / str(mu), "fedprox")
        table["method"]["mu"] = mu
        config.run(table)
    assert [g["label"] for g in content(report.write(tmp_path))["groups"]] == ["fedprox, mu = 0.1", "fedprox, mu = 1.0"]


def test_one_that_has_no_round_still_tells_its_namesakes_apart_and_is_named(tmp_path):
    """A grid of which one setting diverged at once: the page says whose curve it shows."""
    for lr in (0.1, 1e30):
        table = settings(tmp_path / f"lr={lr:g}")
        table["local"]["lr"], table["model"] = lr, {"name": "mlp", "hidden": [8]}
        try:
            config.run(table)
        except Diverged:
            assert lr == 1e30
    case = {"case": "iid", "methods": [{"label": "fedavg lr=1e+30", "diverged": {"0": 1}}]}
    data = content(report.write(tmp_path, comparison={"cases": [case]}))
    assert [g["label"] for g in data["groups"]] == ["fedavg, lr = 0.1"] and data["idle"] == ["lr=1e+30"]
    assert data["comparison"]["diverged"] == ["iid, fedavg lr=1e+30, seed 0 (round 1)"]
    assert content(report.write(tmp_path, comparison={"cases": ["?"]}))["comparison"]["diverged"] == []


def test_reference_lines_are_no_methods_and_send_nothing(tmp_path):
    for method in ("fedavg", "centralized", "local-only"):
        config.run(settings(tmp_path / method, method, rounds=1))
    data = content(report.write(tmp_path))
    assert data["title"] == "fedavg on digits"
    sent = {row["label"]: "bytes" in row["cells"] for row in data["summary"]["rows"]}
    assert sent == {"centralized": False, "fedavg": True, "local-only": False}
    assert ["bytes" in run["x"] for run in data["runs"]] == [False, True, False]


def test_where_models_are_personal_both_measures_are_named(tmp_path):
    tables = settings(tmp_path / "finetune", "finetune", rounds=1, new_clients=2)
    config.run(tables)
    data = content(report.write(tmp_path / "finetune"))
    labels = {column["key"]: column["label"] for column in data["summary"]["columns"]}
    assert labels["test_accuracy"] == "accuracy, global model, test set"
    assert labels["clients_accuracy_mean"] == "accuracy, clients' own data"
    assert labels["gain_share"] == "clients that gain" and labels["new_accuracy_mean"] == "new clients"
    assert labels["new_accuracy_start"] == "new clients as they come"
    assert data["metrics"][0]["key"] == "clients_accuracy_mean"  # shown first
    config.run(settings(tmp_path / "fedavg", rounds=1))
    config.run(settings(tmp_path / "local-only", "local-only", rounds=1))
    both = [tmp_path / "fedavg", tmp_path / "local-only"]  # a reference line is no method
    data = content(report.write(both, tmp_path / "both.html"))
    assert data["metrics"][0]["key"] == "test_accuracy" and data["summary"]["columns"][0]["label"] == "accuracy"


def test_a_table_gives_the_page_its_name(tmp_path):
    rows = [f"{c},{'a' if k % 2 else 'b'},{k}" for c in "xyz" for k in range(8)]
    (tmp_path / "my.csv").write_text("\n".join(["who,what,age", *rows]) + "\n")
    table = settings(tmp_path / "run", rounds=1)
    table["data"] = {"table": str(tmp_path / "my.csv"), "client": "who", "label": "what"}
    config.run(table)
    assert content(report.write(tmp_path / "run"))["title"] == "fedavg on my"


def test_the_selected_round_is_the_one_that_a_comparison_chooses(compared):
    run = read.RunFiles(compared / "fedavg-0")
    for line, value in zip(run.lines, (0.4, 0.5, 0.5, 0.3), strict=True):
        line |= {"validation_accuracy": value, "validation_loss": 1.0}
    assert read._final(run, NUMBERS["selected_accuracy"]) == run.lines[2]["test_accuracy"]


def test_bytes_and_seconds_add_up(compared):
    lines = [json.loads(line) for line in (compared / "scaffold-1/rounds.jsonl").read_text().splitlines()]
    run = content(report.write(compared))["runs"][3]
    assert run["x"]["bytes"][-1] == sum(line["bytes_up"] + line["bytes_down"] for line in lines)
    assert run["x"]["seconds"][-1] == pytest.approx(sum(line["seconds"] for line in lines), abs=1e-3)


def test_history_is_right_to_a_254th(compared):
    run = content(report.write(compared))["runs"][0]
    steps = np.frombuffer(base64.b64decode(run["history"]["bytes"]), np.uint8).reshape(4, 8)
    lines = [json.loads(line) for line in (compared / "fedavg-0/record/rounds.jsonl").read_text().splitlines()]
    truth = np.stack([record.unpack(line["accuracy"]) for line in lines])
    assert np.array_equal(steps == 255, np.isnan(truth))
    shown = np.where(steps == 255, np.nan, steps / 254)
    np.testing.assert_allclose(shown, truth, atol=0.5 / 254 + 1e-6)


def test_the_command_gives_the_same_settings(compared, tmp_path):
    """What the report prints, read by the command line's own parser, is what the run was made from."""
    table = settings(tmp_path / "odd", "fedprox")
    table["model"] = {"name": "mlp", "hidden": [7, 5]}
    table["local"] |= {"shuffle": False, "optimizer": "adam", "betas": [0.8, 0.99]}
    table["run"] |= {"clients_per_round": "bernoulli:0.5", "evaluate_every": 2}
    config.run(table)
    for folder in (compared / "fedavg-1", tmp_path / "odd"):
        made = content(report.write(folder, tmp_path / "r.html"))["commands"][0]["command"]
        words = shlex.split(made)
        assert words[:2] == ["unalike", "run"]
        got = flags.collect(flags.split(words[2:])[1], {})
        want = config.read_tables(folder / "config.toml")
        del want["run"]["folder"]
        assert got == want


def test_a_python_run_has_no_command(tmp_path):
    fed = ua.load("digits").split(ua.partition.IID(), clients=4)
    model = torch.nn.Linear(64, 10)
    ua.simulate(model, fed, ua.FedAvg(), rounds=2, folder=tmp_path / "r")
    data = content(report.write(tmp_path / "r"))
    assert data["commands"][0]["command"] is None
    assert data["runs"][0]["values"] is None and data["clients"] == []


def test_thin_keeps_both_ends():
    assert thin(10, 4).tolist() == [0, 3, 6, 9]
    assert thin(3, 100).tolist() == [0, 1, 2]
    assert thin(0, 5).tolist() == []
    assert thin(1000, 1).tolist() == [0, 999]


def big(folder: Path, clients: int, rounds: int, method: str = "fedavg", seed: int = 0) -> None:
    """A run's folder as a run of this size would leave it."""
    rng = np.random.default_rng(seed)
    (folder / "record").mkdir(parents=True)
    facts = {"run": {"seed": seed, "rounds": rounds}, "method": {"name": method}, "data": {"clients": clients}}
    from unalike.settings.toml import dump_toml

    (folder / "config.toml").write_text(dump_toml(facts))
    names = [f"{HOSTILE} {k}" for k in range(clients)]
    who = {"population": clients, "client": list(range(clients)), "name": names, "samples": [100] * clients}
    (folder / "record/clients.json").write_text(
        json.dumps({**who, "labels": rng.integers(0, 50, (clients, 62)).tolist()})
    )
    lines, records = [], []
    points = record.pack(rng.normal(size=2 * min(clients, 500)))
    for t in range(1, rounds + 1):
        numbers = {
            name: float(rng.uniform()) for name in (*LABELLED, "validation_f1", "clients_f1_mean", "clients_f1_worst20")
        }
        lines.append({"round": t, "clients": 50, "bytes_down": 10**9, "bytes_up": 10**9, **numbers, "seconds": 1.5})
        records.append({"round": t, "loss": record.pack(rng.uniform(size=clients))})
        records[-1]["accuracy"] = record.pack(rng.uniform(size=clients))
        if str(t).rstrip("0") in ("1", "3"):
            records[-1] |= {"places": list(range(min(clients, 500))), "features": points, "explained": [0.5, 0.2]}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "record/rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))


def test_five_megabytes_are_enough(tmp_path):
    big(tmp_path / "one", 500, 1000)
    file = report.write(tmp_path / "one")
    assert file.stat().st_size < 5_000_000
    history = content(file)["runs"][0]["history"]
    assert len(history["rounds"]) == 1000  # one run of this size loses no round


def test_five_megabytes_are_enough_for_many_runs(tmp_path):
    for method, seed in itertools.product(range(7), range(3)):
        big(tmp_path / f"{method}-{seed}", 500, 200, f"method{method}", seed)
    file = report.write(tmp_path)
    assert file.stat().st_size < 5_000_000
    runs = content(file)["runs"]
    assert len(runs) == 21
    for run in runs:
        assert run["history"]["rounds"][0] == 1 and run["history"]["rounds"][-1] == 200


def test_the_same_folders_give_the_same_page(compared, tmp_path):
    assert report.write(compared, tmp_path / "a").read_bytes() == report.write(compared, tmp_path / "b").read_bytes()


def test_infinite_and_missing_numbers_are_left_out(tmp_path):
    config.run(settings(tmp_path / "r"))
    file = tmp_path / "r/rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["test_loss"], lines[2]["test_loss"], lines[2]["train_loss"] = float("inf"), float("nan"), None
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert content(report.write(tmp_path / "r"))["runs"][0]["y"]["test_loss"][1:3] == [None, None]


def test_many_classes_become_one(tmp_path):
    big(tmp_path / "r", 6, 2)
    file = tmp_path / "r/record/clients.json"
    who = json.loads(file.read_text())
    counts = np.random.default_rng(0).integers(0, 9, (6, 300))
    file.write_text(json.dumps({**who, "labels": counts.tolist()}))
    shown = content(report.write(tmp_path / "r"))["clients"][0]
    assert len(shown["classes"]) == 100 and shown["classes"][-1] == "all others"
    assert np.array_equal(np.sum(shown["labels"], 1), counts.sum(1))


# ---------------------------------------------------------------- the page


def luminance(color: str) -> np.ndarray:
    """Linear RGB of "#rrggbb"."""
    c = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, two: str) -> float:
    """WCAG 2's contrast ratio."""
    a, b = sorted(luminance(c) @ [0.2126, 0.7152, 0.0722] for c in (one, two))
    return (b + 0.05) / (a + 0.05)


# Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision deficiency", 2009, full
# severity; and OKLab (Ottosson 2020) for distances.
VISIONS = {
    "normal": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def seen(color: str, vision: np.ndarray) -> np.ndarray:
    return 100 * TO_LAB @ np.cbrt(TO_LMS @ np.clip(vision @ luminance(color), 0, 1))


def schemes() -> dict[str, dict[str, str]]:
    """The variables of page.css in both schemes."""
    css = (Path(page.__file__).parent / "page.css").read_text()
    light, dark = css.split(":root[data-theme=dark]")[0], css.split(":root[data-theme=dark] {")[1].split("}")[0]
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
        for name, text in (("light", light.split("@media")[0]), ("dark", dark))
    }


@pytest.mark.parametrize(("scheme", "colors"), [("light", page.LIGHT), ("dark", page.DARK)])
def test_colours_can_be_seen_and_told_apart(scheme, colors):
    """3 : 1 for lines and marks, 4.5 : 1 for text (WCAG 2.2, 1.4.11 and 1.4.3). A distance of 2 is just visible in
    OKLab times 100; 10 is far from it."""
    base = schemes()[scheme]
    for ground in ("bg", "card"):
        assert min(contrast(color, base[ground]) for color in colors) >= 3
        assert contrast(base["ink"], base[ground]) >= 4.5 and contrast(base["soft"], base[ground]) >= 4.5
    for name, vision in VISIONS.items():
        near = min(np.linalg.norm(seen(a, vision) - seen(b, vision)) for a, b in itertools.combinations(colors, 2))
        assert near >= 10, name


def test_the_dark_scheme_is_written_twice_alike():
    css = (Path(page.__file__).parent / "page.css").read_text()
    asked, chosen = re.findall(r"--bg: #11.*?color-scheme: dark;", css, re.S)
    assert asked.split() == chosen.split()


def test_hostile_words_stay_words(tmp_path):
    big(tmp_path / HOSTILE.replace("/", "-"), 5, 3)
    said = {"verdict": [HOSTILE], "table": [{"method": HOSTILE, "x": 1.0}], "command": HOSTILE}
    text = report.write(tmp_path, comparison=said).read_text()
    assert text.lower().count("</script>") == 2 and "<img" not in text
    assert content(tmp_path / "report.html")["comparison"]["verdict"] == [HOSTILE]


def test_the_policy_names_the_very_script_and_style(compared):
    text = report.write(compared).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for tag in ("style", "script"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S).group(1)
        assert page._hash(inside) in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_comparison_json_is_found(compared, tmp_path):
    (compared / "comparison.json").write_text(
        json.dumps({"verdict": "SCAFFOLD.", "table": [["a", "b"], [1, 0.123456]]})
    )
    try:
        for folders in (compared, [compared / "fedavg-0", compared / "scaffold-0"]):
            said = content(report.write(folders, tmp_path / "r.html"))["comparison"]
            assert said["verdict"] == ["SCAFFOLD."] and said["table"] == [["a", "b"], ["1", "0.1235"]]
        (compared / "comparison.json").write_text("[1")
        with pytest.raises(UnalikeError, match="is not a JSON object"):
            report.write(compared)
    finally:
        (compared / "comparison.json").unlink()


# ---------------------------------------------------------------- the command


def test_report_command(compared, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    out = tmp_path / "deep" / "r.html"
    assert main(["report", str(compared / "fedavg-0"), str(compared / "scaffold-0"), "--out", str(out), "--open"]) == 0
    assert "written to" in capsys.readouterr().out and opened == [out.resolve().as_uri()]
    assert len(content(out)["groups"]) == 2
    assert main(["report", str(compared), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (compared / "report.html").stat().st_size


def test_a_run_in_progress_is_reported(tmp_path):
    config.run(settings(tmp_path / "r"), callbacks=[report.Record()])
    file = tmp_path / "r/rounds.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:2]) + '{"round": 3, "cli')
    run = content(report.write(tmp_path / "r"))["runs"][0]
    assert (run["rounds"], run["asked"], run["history"]["rounds"]) == (2, 4, [1, 2])


def test_a_folder_without_what_is_needed(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.toml").write_text("a = ")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.toml").write_text("[run]\nrounds = 3\n")
    (tmp_path / "file").write_text("")
    for name, words in {
        "nowhere": "is not a folder",
        "file": "is not a folder",
        "empty": "holds no run",
        "broken": "cannot be read",
        "new": "has no finished round yet",
    }.items():
        assert main(["report", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1, said
    config.run(settings(tmp_path / "r", rounds=1))
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "file" / "r.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_damaged_records_leave_the_rest(tmp_path):
    config.run(settings(tmp_path / "r"), callbacks=[report.Record()])
    (tmp_path / "r/record/clients.json").write_text("{")
    (tmp_path / "r/record/last.json").write_text("[]")
    run = content(report.write(tmp_path / "r"))["runs"][0]
    assert run["values"] is None and run["y"]["test_accuracy"]


def test_views_of_trees_become_plain_words_and_whole_trees():
    """The file is somebody else's: what is no tree is left out, and nothing is drawn that has no end."""
    from unalike.report import forest

    good = {"title": "Tree 1", "nodes": [[1, "age ≤ 3", 2.5, True], [2, -0.5], [3, 0.25]]}
    bad = [
        {"nodes": [[1, "a", 1.0, True], [2, 0.1]]}, {"nodes": [[1, float("nan")]]}, {"nodes": [[0, 1.0]]}, {"nodes": 3},
        {"nodes": [[1, 0.5], [7, 0.5]]}, {"nodes": [[1, 0.5, 3]]}, 7, {"nodes": [[1 << 40, 0.5]]},
    ]  # fmt: skip
    given = {"who": 3, "trees": "many", "shares": [{"of": "x", "rows": [["a", 0.5], ["b", "c"], [1, 2, 3]]}, 5]}
    (view,) = forest.shown([{**given, "drawn": [*bad, good]}, None, "no"])
    assert view == {"who": "3", "trees": None, "shares": [{"of": "x", "rows": [["a", 0.5]]}], "drawn": [good]}
