"""One pooled data set, before it is dealt to clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unalike.data import partition as partitions
from unalike.data.federation import Columns, Federation, as_pair
from unalike.errors import UnalikeError


class Dataset:
    """Samples and labels, optionally a test set (x, y) that becomes the federation's global test set."""

    def __init__(
        self,
        x: Any,
        y: Any,
        test: tuple[Any, Any] | None = None,
        classes: int | None = None,
        name: str = "data",
    ):
        self.name = name
        self.x, self.y = as_pair(x, y, f"{name!r}")
        if not len(self.x):
            raise UnalikeError(f"The data set {name!r} is empty: give at least one sample.")
        whole = Federation(Columns(self.x, self.y, [0, len(self.x)]), global_test=test, classes=classes)
        self.test, self.classes = whole.global_test, whole.classes

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        test = "no test set" if self.test is None else f"{len(self.test[0])} test samples"
        return f"Dataset({self.name!r}, {len(self)} samples, {test}, x {list(self.x.shape[1:])}, {kind})"

    def split(
        self,
        partition: partitions.Partition | str,
        clients: int,
        seed: int = 0,
        test: float = 0.0,
        validation: float = 0.0,
    ) -> Federation:
        """Deal the samples to clients ('dirichlet:0.3' or a partition), then carve per-client splits."""
        if isinstance(partition, str):
            partition = partitions.parse(partition)
        parts = [np.asarray(part, np.int64) for part in partition(self.y.cpu().numpy(), clients, seed)]
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if len(parts) != clients or (len(rows) and (rows.min() < 0 or rows.max() >= len(self))):
            raise UnalikeError(
                f"The partition {partition!r} gave {len(parts)} parts for {clients} clients, with row "
                f"numbers up to {rows.max(initial=0)}: it must give one part a client, of rows in "
                f"0..{len(self) - 1}; mend it."
            )
        index = torch.from_numpy(rows).to(self.x.device)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        columns = Columns(self.x.index_select(0, index), self.y.index_select(0, index), offsets)
        fed = Federation(columns, global_test=self.test, classes=self.classes)
        return fed.split_clients(test=test, validation=validation, seed=seed)
