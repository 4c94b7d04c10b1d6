"""Trees as XGBoost's JSON, so that any server of XGBoost models can serve them.

XGBoost sends a value left if it is *below* a threshold, ours if it is at most the cut: the threshold is the next
float32 number. Leaves are float32 there, so margins agree to about 1e-6. A category is "in the set" on the right side.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from unalike.files import complaining, replace
from unalike.trees.model import Boosted
from unalike.trees.tree import Tree

VERSION = [3, 0, 0]
OBJECTIVES = {"number": "reg:squarederror", "two": "binary:logistic", "several": "multi:softprob"}
NOWHERE = 2147483647  # the parent of the root


def save(model: Boosted, path: str | os.PathLike) -> Path:
    """Write the model for `xgboost.Booster(model_file=...)`; the name ends in .json."""
    with complaining(f"{path} cannot be written"):
        replace(Path(path), json.dumps(exported(model)).encode())
    return Path(path)


def exported(model: Boosted) -> dict[str, Any]:
    """Return the model as XGBoost's JSON."""
    kind = "number" if model.classes is None else "two" if model.outputs == 1 else "several"
    trees = [_tree(model, tree, number) for number, tree in enumerate(model.all_trees)]
    per_round = model.outputs
    gbtree = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [per_round * k for k in range(len(model.trees) + 1)],
        "tree_info": [number % per_round for number in range(len(trees))],
        "trees": trees,
    }
    types = ["c" if category else "float" for category in model.categories.tolist()]
    learner = {
        "attributes": {},
        "feature_names": [model.name(k) for k in range(len(types))] if model.names else [],
        "feature_types": types if model.names or "c" in types else [],
        "gradient_booster": {"model": gbtree, "name": "gbtree"},
        "learner_model_param": _parameters(model, kind),
        "objective": _objective(model, kind),
    }
    return {"learner": learner, "version": VERSION}


def _parameters(model: Boosted, kind: str) -> dict[str, str]:
    base = 1 / (1 + math.exp(-model.base)) if kind == "two" else model.base
    return {
        "base_score": f"{base:.9E}",
        "boost_from_average": "1",
        "num_class": str(model.classes if kind == "several" else 0),
        "num_feature": str(len(model.cuts)),
        "num_target": "1",
    }


def _objective(model: Boosted, kind: str) -> dict[str, Any]:
    if kind == "several":
        return {"name": OBJECTIVES[kind], "softmax_multiclass_param": {"num_class": str(model.classes)}}
    return {"name": OBJECTIVES[kind], "reg_loss_param": {"scale_pos_weight": "1"}}


def _tree(model: Boosted, tree: Tree, number: int) -> dict[str, Any]:
    order = np.sort(np.concatenate([tree.splits, tree.leaves])).tolist()
    index = {place: k for k, place in enumerate(order)}
    inner = set(tree.splits.tolist())
    child = lambda place, k: index[2 * place + k] if place in inner else -1  # noqa: E731
    column = [int(tree.column[p]) if p in inner else 0 for p in order]
    category = [p in inner and bool(model.categories[int(tree.column[p])]) for p in order]
    sets = [k for k, flag in enumerate(category) if flag]
    return {
        "base_weights": [float(tree.value[p]) for p in order],
        "categories": [int(tree.bin[order[k]]) for k in sets],
        "categories_nodes": sets,
        "categories_segments": [*range(len(sets))],
        "categories_sizes": [1] * len(sets),
        "default_left": [int(p in inner and bool(tree.missing_left[p])) for p in order],
        "id": number,
        "left_children": [child(p, 0) for p in order],
        "loss_changes": [float(tree.gain[p]) for p in order],
        "parents": [index[p // 2] if p > 1 else NOWHERE for p in order],
        "right_children": [child(p, 1) for p in order],
        "split_conditions": [_condition(model, tree, p, p in inner) for p in order],
        "split_indices": column,
        "split_type": [int(flag) for flag in category],
        "sum_hessian": [float(tree.weight[p]) for p in order],
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(model.cuts)),
            "num_nodes": str(len(order)),
            "size_leaf_vector": "1",
        },
    }


def _condition(model: Boosted, tree: Tree, place: int, inner: bool) -> float:
    """Return a split's threshold, or a leaf's value."""
    if not inner:
        return float(tree.value[place])
    cut = model.cut(int(tree.column[place]), int(tree.bin[place])).numpy()
    return float(np.nextafter(cut, np.float32(np.inf)))
