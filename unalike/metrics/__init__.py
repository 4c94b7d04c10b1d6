"""Numbers about a model: on a test set, and over clients."""

from unalike.metrics.choose import headline
from unalike.metrics.constant import constant_scores
from unalike.metrics.divergence import label_emd, weight_divergence
from unalike.metrics.drift import Drift
from unalike.metrics.evaluation import evaluate_columns, evaluate_set
from unalike.metrics.fairness import spread

__all__ = [
    "Drift",
    "constant_scores",
    "evaluate_columns",
    "evaluate_set",
    "headline",
    "label_emd",
    "spread",
    "weight_divergence",
]
