"""What the device needs to know of a draft's output head."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.inputs import DraftInput

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Head:
    """How many columns count and, over a subset of the vocabulary, their ids on the device and here."""

    columns: int
    token_map: Tensor | None = None
    ids: NDArray[np.int64] | None = None

    def by_column(self, item: DraftInput) -> DraftInput:
        """The same with biases and counts by column; what the head cannot say needs none."""
        if self.ids is None:
            return item
        sampling, counts = item.sampling, item.token_counts
        if sampling.logit_bias:
            sampling = replace(sampling, logit_bias=tuple(_by_column(self.ids, dict(sampling.logit_bias)).items()))
        return replace(item, sampling=sampling, token_counts=None if counts is None else _by_column(self.ids, counts))

    def ids_of(self, columns: NDArray[np.int32]) -> NDArray[np.integer]:
        """Token ids of columns."""
        return columns if self.ids is None else self.ids[columns]


def head_of(vocabulary_size: int, token_map: Tensor | None) -> Head:
    """Brings a token map to the host; waits for the device."""
    if token_map is None:
        return Head(vocabulary_size)
    ids = token_map.cpu().numpy()
    return Head(int(np.searchsorted(ids, vocabulary_size)), token_map, ids)


def _by_column(ids: NDArray[np.int64], values: Mapping[int, Number]) -> dict[int, Number]:
    listed = np.fromiter(values, dtype=np.int64, count=len(values))
    columns = np.searchsorted(ids, listed).clip(max=len(ids) - 1)
    pairs = zip(columns.tolist(), (ids[columns] == listed).tolist(), values.values(), strict=True)
    return {column: value for column, known, value in pairs if known}
