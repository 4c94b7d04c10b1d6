"""What tests of vertical learning share: golden tables, breast cancer cut in two, tables on disk."""

import csv

import numpy as np
import torch
from goldens import golden

from unalike import vertical as v
from unalike.vertical.run import Settings, simulated


def golden_parties(file, joined=False):
    data = golden(file)["data"]
    x = [np.array(part) for part in data["x"]]
    x = [x[0], np.concatenate(x[1:], 1)] if joined else x
    return v.Parties.from_arrays(dict(zip(data["parties"], x, strict=False)), np.array(data["y"]).astype(int))


def session_of(parties, method, engine="direct", **settings):
    """Return a session that is set up, in stored order."""
    session = simulated(parties, method, Settings(shuffle=False, **settings), engine)
    session.set_up()
    return session


def listen(node):
    """Return a list to which every request that a party gets, and its answer, is added."""
    heard, handle = [], node.handle

    def spy(header, tensors):
        answer = handle(header, tensors)
        heard.append((header, dict(tensors), answer[1]))
        return answer

    node.handle = spy
    return heard


def thetas(parties):
    return [node.me.theta[:, 0] for node in (parties.guest, *parties.hosts)]


def furthest(found, expected):
    pairs = zip(found, expected, strict=True)
    return max(
        float((f.detach().flatten() - torch.tensor(e, dtype=torch.float64).flatten()).abs().max()) for f, e in pairs
    )


def cancer(rows=569):
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return x[:rows], y[:rows]


def cancer_parties(parts=None, **options):
    return v.split(cancer(), parts or {"clinic": 10, "lab": 20}, test=0.2, **options)


def write(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def bank_and_shop(folder, people=120, seed=0):
    """Write two small tables of mostly the same customers."""
    draw = np.random.default_rng(seed)
    income, orders, returns = draw.normal(size=(3, people))
    default = (income - orders + 0.5 * draw.normal(size=people) < 0).astype(int)
    names = [f"c{k:03d}" for k in range(people)]
    bank = {"customer": names, "income": income.round(4), "age": draw.integers(18, 80, people), "default": default}
    order = draw.permutation(people)[10:]
    shop = {"customer": [names[k] for k in order] + ["x1", "x2"]}
    shop["orders"] = [*orders[order].round(4), 0.0, 0.0]
    shop["returns"] = [*returns[order].round(4), 0.0, 0.0]
    return write(folder / "bank.csv", bank), write(folder / "shop.csv", shop)
