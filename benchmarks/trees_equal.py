"""Are the trees the same, whoever holds the rows or columns, and as good as others'?

    python benchmarks/trees_equal.py                     both tables; some ten minutes on two cores
    python benchmarks/trees_equal.py a1a --trees 5       one of: credit a1a
    python benchmarks/trees_equal.py --credit FILE.npz   the UCI credit table (as trees.py takes it), if you have it

For each table: 20 trees of depth 5 of the pooled table; then of 1, 5 and 100 clients by messages (5 and 100 also
through secure sums) and of 2 and 3 parties, each "equal" if cuts, splits and leaves are the pooled ones, bit for bit.
Then XGBoost on the same bins: the largest difference of margins, over the largest margin. Then XGBoost's and
scikit-learn's own bins: AUC over five parts held out one after another, and our lead over each with its standard error.
"""

import argparse

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from trees import a9a, credit

import unalike as ua
from unalike.data import Dataset
from unalike.trees.forest import PARTS, as_tensors, stacked

TREES, DEPTH, FOLDS = 20, 5, 5


def forest(model):
    """A model's trees as a server has them."""
    grown = [stacked([as_tensors(tree) for tree in trees], rounds=True) for trees in model.trees]
    return {name: torch.cat([trees[name] for trees in grown]) for name in PARTS}


def clients_agree(model, x, y, clients, channel, trees):
    """Whether so many clients with skewed labels grow the model, bit for bit."""
    partition = "dirichlet:0.3" if clients > 1 else "iid"
    fed = Dataset(torch.tensor(x), torch.tensor(y)).split(partition, clients, seed=0)
    method, options = ua.HistBoost(trees=trees, depth=DEPTH), {"evaluate_every": trees, "channel": channel}
    run = ua.simulate(None, fed, method, rounds=trees, engine="batched", **options)
    same = [torch.equal(run.server.values[name], part) for name, part in forest(model).items()]
    return all(same) and torch.equal(run.server.cuts, model.cuts)


def parties_agree(model, x, y, count, trees):
    """Whether so many parties with columns each have the model's leaves and gains, bit for bit. (Ciphers change no bit
    of the sums: `trees.py paillier` compares them too.)"""
    parts = np.array_split(np.arange(x.shape[1]), count)
    parties = ua.vertical.Parties.from_arrays({f"party{k}": x[:, own] for k, own in enumerate(parts)}, y)
    method = ua.vertical.SecureBoost(trees=trees, depth=DEPTH, cipher="none")
    me = ua.vertical.fit(method, parties, epochs=trees).session.me
    leaves, gains = (torch.stack([torch.from_numpy(getattr(t, n)) for t in model.all_trees]) for n in ("value", "gain"))
    return torch.equal(me.value.flatten(0, 1), leaves) and torch.equal(me.gain.flatten(0, 1), gains)


def margins_apart(model, x, y, trees):
    """The largest difference between our margins and XGBoost's on the same bins, over the largest margin."""
    import xgboost

    rows = xgboost.DMatrix(model.codes(x).numpy().astype(np.float32), label=y)
    settings = {
        "objective": "binary:logistic",
        "max_depth": DEPTH,
        "eta": 0.3,
        "tree_method": "hist",
        "base_score": 0.5,
    }
    theirs = xgboost.train(settings, rows, trees).predict(rows, output_margin=True)
    mine = model.margins(x)[:, 0].numpy()
    return float(np.abs(mine - theirs).max() / np.abs(mine).max())


def scores(x, y, trees):
    """AUC on each part held out: ours, XGBoost's and scikit-learn's with their own bins, [folds, 3]."""
    import xgboost

    part, shape = np.random.default_rng(0).permutation(len(y)) % FOLDS, {"max_depth": DEPTH, "learning_rate": 0.3}
    found = []
    for k in range(FOLDS):
        train, held = part != k, part == k
        mine = ua.trees.fit(ua.HistBoost(trees=trees, depth=DEPTH), (x[train], y[train]))
        others = [
            xgboost.XGBClassifier(**shape, n_estimators=trees, tree_method="hist", n_jobs=2),
            HistGradientBoostingClassifier(**shape, max_iter=trees, early_stopping=False, max_leaf_nodes=None),
        ]
        chances = [m.fit(x[train], y[train]).predict_proba(x[held])[:, 1] for m in others]
        chances = [mine.margins(x[held])[:, 0].numpy(), *chances]
        found.append([roc_auc_score(y[held], chance) for chance in chances])
    return np.array(found)


def leads(found):
    """Our mean lead over each other, and its standard error."""
    gaps = found[:, :1] - found[:, 1:]
    return gaps.mean(0), gaps.std(0, ddof=1) / np.sqrt(len(gaps))


def report(x, y, source, trees):
    print(f"{source}, {x.shape[0]:,} × {x.shape[1]}, {trees} trees of depth {DEPTH}", flush=True)
    model = ua.trees.fit(ua.HistBoost(trees=trees, depth=DEPTH), (x, y))
    for clients in (1, 5, 100):
        for channel in [""] if clients == 1 else ["", "secure-sum"]:
            equal = clients_agree(model, x, y, clients, channel or None, trees)
            print(f"  {clients:3} clients{', secure sums' if channel else '':13}  equal: {equal}", flush=True)
    for count in (2, 3):
        print(f"  {count:3} parties               equal: {parties_agree(model, x, y, count, trees)}", flush=True)
    print(f"  XGBoost on the same bins: margins differ by {margins_apart(model, x, y, trees):.1e} of the largest")
    found = scores(x, y, trees)
    (first, second), (one, two) = leads(found)
    means = ", ".join(
        f"{name} {v:.4f}" for name, v in zip(("ours", "XGBoost", "scikit-learn"), found.mean(0), strict=True)
    )
    print(f"  AUC, {FOLDS} parts held out, bins of their own: {means}")
    print(f"  our lead: {first:+.4f} ± {one:.4f} over XGBoost, {second:+.4f} ± {two:.4f} over scikit-learn", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["credit", "a1a"])
    parser.add_argument("--credit", help="npz with x_train and y_train")
    parser.add_argument("--trees", type=int, default=TREES)
    args = parser.parse_args()
    tables = {"credit": lambda: credit(args.credit), "a1a": a9a}
    for name in args.what:
        report(*tables[name](), args.trees)


if __name__ == "__main__":
    main()
