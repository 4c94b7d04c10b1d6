"""What every vertical method must do: found in the registry, so a new method is tested without a line here."""

import numpy as np
import pytest
import torch
from vertical_cases import cancer

from unalike import vertical as v
from unalike.errors import UnalikeError
from unalike.vertical.fields import answers, check
from unalike.vertical.method import METHODS, kept, settings_names
from unalike.vertical.node import Node

NAMES = sorted(METHODS)
SHORT = {"lr": 0.2, "bits": 512, "trees": 2, "depth": 2}  # settings that make a method quick, of those that have them
WHOLE = ("secure-boost",)  # learn from all rows at once


def method_of(name):
    own = settings_names(METHODS[name])
    return METHODS[name](**{setting: value for setting, value in SHORT.items() if setting in own})


def parties_of(name, order=("b", "c")):
    x, y = cancer(96)
    y = x[:, 20] if METHODS[name].tasks == ("number",) else y
    columns = {"a": range(4), "b": range(4, 7), "c": range(7, 10)}
    return v.split((x, y), {n: list(columns[n]) for n in ("a", *order)}, test=0.0)


def end(parties):
    nodes = sorted((parties.guest, *parties.hosts), key=lambda node: node.name)
    return [t.clone() for node in nodes for t in kept(node.method, node.me).values()]


@pytest.mark.parametrize("name", NAMES)
def test_through_bytes_and_resumed_it_is_the_same(name, tmp_path):
    options = {"batch_size": None if name in WHOLE else 48, "seed": 2}
    whole = parties_of(name)
    v.fit(method_of(name), whole, epochs=2, **options)
    v.fit(method_of(name), parties_of(name), epochs=1, engine="loopback", folder=tmp_path / "run", **options)
    again = parties_of(name)
    v.fit(method_of(name), again, epochs=2, engine="loopback", folder=tmp_path / "run", resume=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(end(again), end(whole), strict=True))


@pytest.mark.parametrize("name", [n for n in NAMES if "theta" in METHODS[n].keeps])  # others' tops name hosts by place
def test_the_order_of_hosts_does_not_matter(name):
    ends = []
    for order in (("b", "c"), ("c", "b")):
        parties = parties_of(name, order)
        for node in (parties.guest, *parties.hosts):  # the same rows in the same order
            place = {one: k for k, one in enumerate(node.table.ids)}
            node.positions = torch.tensor([place[one] for one in sorted(place)])
        v.fit(method_of(name), parties, epochs=1, shuffle=False)
        ends.append(end(parties))
    assert max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True)) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_crosses_is_declared(name):
    method = method_of(name)
    for function in answers(method).values():
        for field in function.gives:
            assert method.sends[field].to == "guest" and method.sends[field].tells
        for field in set(function.takes) - {"rows"} & set(method.sends):
            assert method.sends[field].to != "guest" if field in method.sends else True


@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_is_not_as_declared_is_refused(name):
    """Of every field of every function: left out, of another kind, of another shape, not finite, one too many."""
    method, sizes = method_of(name), {"rows": 5, "outputs": 1, "columns": 3, "width": 8}
    declared = {"rows": v.fields.ROWS, **method.sends}
    for function in answers(method).values():
        for names in (function.takes, function.gives):
            names = tuple(n for n in names if n in declared)
            good = {n: right(declared[n], method, sizes) for n in names}
            check(good, names, method, sizes, "shop")
            for wrong in spoilt(good):
                with pytest.raises(UnalikeError, match=r"^shop sent"):
                    check(wrong, names, method, sizes, "shop")


def right(field, method, sizes):
    if field.sealed or field.kind == "bytes":
        return torch.zeros(40, dtype=torch.uint8)
    kind = torch.int64 if field.kind == "index" else torch.float64
    return torch.zeros(field.resolve(sizes, method), dtype=kind)


def spoilt(good):
    yield {**good, "more": torch.zeros(1)}
    for name, value in good.items():
        yield {n: v for n, v in good.items() if n != name}
        yield {**good, name: value.to(torch.float32)}
        yield {**good, name: torch.stack([value, value])[None]}
        if value.is_floating_point():
            yield {**good, name: torch.full_like(value, np.nan)}
            yield {**good, name: torch.full_like(value, np.inf)}


@pytest.mark.parametrize(
    ("header", "tensors", "line"),
    [
        ({"kind": "burn"}, {}, "which no party answers"),
        ({"kind": ["call"]}, {}, "which no party answers"),
        ({"kind": "call", "function": "start"}, {}, "'start', which LogisticRegression does not answer"),
        ({"kind": "call", "function": "__init__"}, {}, "does not answer"),
        ({"kind": "call", "function": "partial"}, {"rows": torch.tensor([0, 0])}, "the same row twice"),
        ({"kind": "call", "function": "partial"}, {"rows": torch.tensor([96])}, "out of range"),
        ({"kind": "call", "function": "partial"}, {"rows": torch.tensor([-1])}, "out of range"),
        ({"kind": "call", "function": "partial"}, {"rows": torch.zeros(0, dtype=torch.int64)}, "no list of places"),
        ({"kind": "call", "function": "partial"}, {"rows": torch.tensor(3)}, "shape"),
        ({"kind": "call", "function": "learn"}, {"rows": torch.tensor([1]), "d": torch.ones(2, 1).double()}, "shape"),
        ({"kind": "setup", "method": "exec"}, {}, "named no method"),
        ({"kind": "setup", "method": "exec", "settings": {}}, {}, "no vertical method 'exec'"),
        ({"kind": "setup", "method": "logistic", "settings": {"lr": "x"}}, {}, "lr must be a number above 0"),
        ({"kind": "setup", "method": "logistic", "settings": {"rate": 1}}, {}, "no setting of logistic 'rate'"),
        ({"kind": "setup", "method": "logistic", "settings": {}, "outputs": -1}, {}, "outputs -1"),
        ({"kind": "align"}, {"places": torch.tensor([0, 0])}, "not those of different rows"),
        ({"kind": "align"}, {"places": torch.tensor([0, 96])}, "not those of different rows"),
        ({"kind": "align"}, {"places": torch.tensor([-2])}, "not those of different rows"),
        ({"kind": "align"}, {"places": torch.tensor([0.5])}, "no list of whole numbers"),
        ({"kind": "restore", "epoch": "../x"}, {}, "epoch ../x"),
        ({"kind": "restore", "epoch": 7}, {}, "nothing of epoch 7"),
    ],
)  # fmt: skip
def test_requests_that_no_guest_makes_are_refused(header, tensors, line):
    parties = parties_of("logistic")
    v.fit(v.LogisticRegression(), parties, epochs=1)
    with pytest.raises(UnalikeError, match=line):
        parties.hosts[0].handle({"epoch": 1, "step": 0, **header}, tensors)


@pytest.mark.parametrize(
    ("header", "tensors", "line"),
    [
        ({"kind": "align"}, {"places": torch.tensor([0])}, "before ids were compared"),
        ({"kind": "mask"}, {"points": torch.zeros(1, 32, dtype=torch.uint8)}, "before it asked for any"),
        ({"kind": "call", "function": "partial"}, {}, "before a run was set up"),
        ({"kind": "restore", "epoch": 1}, {}, "before a run was set up"),
        ({"kind": "adopt"}, {}, "no part of a model"),
        ({"kind": "hello", "version": "0.0.0"}, {}, "the guest runs unalike 0.0.0"),
        ({"kind": "setup", "method": "fedbcd", "settings": {}}, {}, "takes part in hardy, not in 'fedbcd'"),
        (
            {"kind": "setup", "method": "hardy", "settings": {"bits": 1024}},
            {},
            "takes keys of 2048 bits or more, not of 1024",
        ),
    ],
)
def test_requests_that_come_too_early_are_refused(header, tensors, line):
    table = parties_of("logistic").hosts[0].table
    node = Node(table, methods=["hardy"], least_bits=2048)
    with pytest.raises(UnalikeError, match=line):
        node.handle(header, tensors)
