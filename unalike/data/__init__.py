"""Data: federations as columns, partitions of pooled data sets, synthetic federations, data sets by name."""

from unalike.data import partition, synthetic
from unalike.data.columns import Columns
from unalike.data.dataset import Dataset
from unalike.data.federation import Federation
from unalike.data.sources import load, load_federation

__all__ = ["Columns", "Dataset", "Federation", "load", "load_federation", "partition", "synthetic"]
