"""Plain objects to the tensors of `specmesh.kernels.reference.batch`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.kernels.reference.batch import DraftBatch, LawParams, Ragged, VerifyBatch
from specmesh.kernels.reference.law import COLDEST
from specmesh.kernels.reference.philox import key_tensor
from specmesh.runtime.types import Rule, Sampling


def _ints(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _offsets(sizes: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))


def _ragged(items: Sequence[Mapping[int, float]], dtype: torch.dtype) -> Ragged:
    ids = _ints(chain.from_iterable(items))
    values = torch.tensor([value for item in items for value in item.values()], dtype=dtype)
    return Ragged(_offsets([len(item) for item in items]), ids, values)


def check_counts(samplings: Sequence[Sampling], counts: Sequence[Mapping[int, int] | None]) -> None:
    """Raises ValueError when a session with penalties brings no counts."""
    if any(sampling.has_penalties and seen is None for sampling, seen in zip(samplings, counts, strict=True)):
        raise ValueError("token_counts is needed by a session with penalties")


def pack_law(samplings: Sequence[Sampling], counts: Sequence[Mapping[int, int] | None]) -> LawParams:
    """Per-session parameters. Raises ValueError as `check_counts` does.

    A bias or a count of an id outside the vocabulary has nothing to act on; services refuse such a bias before.
    """
    check_counts(samplings, counts)
    penalised = [
        seen if sampling.has_penalties and seen is not None else {}
        for sampling, seen in zip(samplings, counts, strict=True)
    ]
    floats = torch.tensor(
        [
            (
                s.temperature and max(s.temperature, COLDEST),
                s.top_p,
                s.min_p,
                s.repetition_penalty,
                s.presence_penalty,
                s.frequency_penalty,
            )
            for s in samplings
        ],
        dtype=torch.float32,
    ).reshape(-1, 6)
    temperature, top_p, min_p, repetition, presence, frequency = floats.unbind(dim=1)
    return LawParams(
        temperature=temperature,
        top_k=_ints(s.top_k for s in samplings),
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        bias=_ragged([dict(s.logit_bias) for s in samplings], torch.float32),
        counts=_ragged(penalised, torch.int64),
    )


def check_shapes(logits: Tensor, inputs: Sequence[VerifyInput]) -> list[int]:
    """Block lengths. Raises ValueError when rows of logits are not one per drafted token and one more per session."""
    lengths = [len(item.draft_token_ids) for item in inputs]
    if logits.shape[0] != sum(lengths) + len(inputs):
        raise ValueError(f"{logits.shape[0]} rows of logits for {sum(lengths)} drafts of {len(inputs)} sessions")
    if any(item.rows and len(item.rows) != len(item.draft_token_ids) for item in inputs):
        raise ValueError("rows must be one per drafted token, or none")
    return lengths


def pack_verify(logits: Tensor, inputs: Sequence[VerifyInput], vocabulary_size: int) -> VerifyBatch:
    """Raises ValueError as `check_shapes` does."""
    lengths = check_shapes(logits, inputs)
    return VerifyBatch(
        logits=logits,
        vocabulary_size=vocabulary_size,
        row_starts=_offsets([length + 1 for length in lengths]),
        draft_token_ids=_ints(chain.from_iterable(item.draft_token_ids for item in inputs)),
        draft_rows=_pack_rows(inputs),
        block_start=_ints(item.block_start for item in inputs),
        key=key_tensor([item.key for item in inputs]),
        coupled=torch.tensor([item.rule is Rule.COUPLED for item in inputs]),
        block_rule=torch.tensor([item.rule is Rule.BLOCK for item in inputs]),
        law=pack_law([item.sampling for item in inputs], [item.token_counts for item in inputs]),
    )


def _pack_rows(inputs: Sequence[VerifyInput]) -> Ragged:
    sizes: list[int] = []
    parts: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = []
    for item in inputs:
        sizes += [len(row[0]) for row in item.rows] or [0] * len(item.draft_token_ids)
        parts += item.rows
    if not parts:
        return Ragged(_offsets(sizes), _ints([]), _ints([]))
    ids, weights = (torch.from_numpy(np.concatenate(column).astype(np.int64)) for column in zip(*parts, strict=True))
    return Ragged(_offsets(sizes), ids, weights)


def check_draft_shapes(logits: Tensor, inputs: Sequence[DraftInput], token_map: Tensor | None) -> None:
    """Raises ValueError when rows of logits are not one per session, or columns not one per id of the head."""
    if logits.shape[0] != len(inputs):
        raise ValueError(f"{logits.shape[0]} rows of logits for {len(inputs)} sessions")
    if token_map is not None and len(token_map) != logits.shape[1]:
        raise ValueError(f"a token map of {len(token_map)} ids for logits {logits.shape[1]} wide")


def pack_draft(
    logits: Tensor, inputs: Sequence[DraftInput], vocabulary_size: int, token_map: Tensor | None
) -> DraftBatch:
    """Raises ValueError as `check_draft_shapes` does."""
    check_draft_shapes(logits, inputs, token_map)
    return DraftBatch(
        logits=logits,
        vocabulary_size=vocabulary_size,
        token_map=token_map,
        block_start=_ints(item.block_start for item in inputs),
        offset=_ints(item.offset for item in inputs),
        key=key_tensor([item.key for item in inputs]),
        coupled=torch.tensor([item.rule is Rule.COUPLED for item in inputs]),
        max_row=_ints(item.max_row for item in inputs),
        row_mass=torch.tensor([item.row_mass for item in inputs], dtype=torch.float32),
        law=pack_law([item.sampling for item in inputs], [item.token_counts for item in inputs]),
    )
