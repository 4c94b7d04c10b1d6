"""Gradient-boosted trees on histograms: the same bits from one table, from clients' sums, and between parties."""

from unalike.trees.fit import fit
from unalike.trees.model import Boosted
from unalike.trees.settings import Boosting
from unalike.trees.xgboost import save as save_xgboost

__all__ = ["Boosted", "Boosting", "fit", "save_xgboost"]
