"""Which metrics suit some data: the first is the headline."""

from __future__ import annotations

import numpy as np

from unalike.data.federation import Federation
from unalike.nn.metrics import OF_NUMBERS

# share of the largest class from which accuracy says little
IMBALANCED = 0.8
MANY = 20  # classes beyond which one curve per class says little


def headline(federation: Federation) -> list[str]:
    """Return the metrics for a user's own data, the headline first.

    Numbers: rmse. Classes: accuracy, unless the largest class has 80 % of the training samples or more; then auc for
    two classes, and balanced accuracy for more.
    """
    if federation.classes is None:
        return list(OF_NUMBERS)
    counts = np.bincount(federation.train.y.cpu().numpy(), minlength=federation.classes)
    names = ["accuracy", "auc", "balanced_accuracy", "f1", "brier", "calibration_error"]
    if counts.max(initial=0) >= IMBALANCED * counts.sum():
        first = ["auc", "balanced_accuracy"] if federation.classes <= 2 else ["balanced_accuracy", "auc"]
        names = [*first, "f1", "accuracy", "brier", "calibration_error"]
    return [name for name in names if name != "auc" or federation.classes <= MANY]
