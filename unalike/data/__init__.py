"""Data: federations as columns, partitions of pooled data sets, synthetic federations, data sets by name."""

from unalike.data import partition, skew, synthetic
from unalike.data.columns import Columns
from unalike.data.dataset import Dataset
from unalike.data.extras import noise_like
from unalike.data.federation import SPLITS, Federation
from unalike.data.remote import RemoteFederation
from unalike.data.sources import load, load_federation

__all__ = [
    "SPLITS", "Columns", "Dataset", "Federation", "RemoteFederation", "load", "load_federation", "noise_like",
    "partition", "skew", "synthetic",
]  # fmt: skip
