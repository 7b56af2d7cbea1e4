"""What is proved of a model before it is served.

Its paged forward is the model's own, and on the CPU in float32 no row depends on its neighbours.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.errors import UnsupportedModel
from specmesh.model.fused import fuse, fusing_problem
from specmesh.model.paged import PagedModel
from specmesh.model.plan import Span

TOLERANCE = 1e-5
SMALL_VOCABULARY = 96
SMALL_WINDOW = 8
SMALL_HEAD = 16
SMALL_LAYERS = 2
LENGTHS = (37, 26)
CHUNKS = ((0, 5, 6, 30, 37), (0, 17, 18, 20, 26))
"""Tokens of the two sessions, and where each is cut: chunks and single tokens, beyond `SMALL_WINDOW`."""
CHANGING_ROPE = ("dynamic", "longrope")
NO_MODEL = (RuntimeError, TypeError, AttributeError, LookupError, ValueError, StrictDataclassError)
"""What a small model raises whose configuration cannot be shrunk so."""

logger = logging.getLogger(__name__)


def check_architecture(config: PretrainedConfig) -> None:
    """Raises `UnsupportedModel` unless a small random model of this class and configuration equals eager attention.

    Two sessions in one ragged forward, in float32, within 1e-5 of the largest logit. The model at hand is not needed.
    """
    check_rope(config)
    try:
        compare(*_twins(shrink(config)))
    except NO_MODEL as error:
        raise UnsupportedModel(f"a small model of its kind cannot be checked: {type(error).__name__}") from error


def fuse_where_equal(model: PagedModel) -> bool:
    """Swap a model's layers for their fused forms, if a small random model of its kind with such layers, on the same
    device, equals eager attention as `check_architecture` asks. Else leave it as it is and log why.
    """
    problem = fusing_problem(model.module)
    if problem is None:
        try:
            fused_difference(model.module.config, model.device)
        except (UnsupportedModel, *NO_MODEL) as error:
            problem = f"a small model with fused layers fails: {type(error).__name__}: {error}".splitlines()[0]
    if problem is not None:
        logger.warning(f"the model's layers run launch by launch, not fused: {problem}")
        return False
    fuse(model.module)
    return True


def fused_difference(config: PretrainedConfig, device: torch.device) -> float:
    """`compare` for a small random model of this class and configuration with fused layers, paged on `device`."""
    return compare(*_twins(shrink(config), device, fused=True))


def compare(plain: PreTrainedModel, paged: PagedModel) -> float:
    """How far the logits are apart, as a share of the largest. Raises `UnsupportedModel` beyond `TOLERANCE`."""
    worst = 0.0
    generator = torch.Generator().manual_seed(1)
    sessions = [torch.randint(SMALL_VOCABULARY, (length,), generator=generator) for length in LENGTHS]
    with torch.inference_mode():
        wanted = [plain(input_ids=session[None], use_cache=False).logits[0] for session in sessions]
    found = _paged_logits(paged, [session.tolist() for session in sessions])
    for want, got in zip(wanted, found, strict=True):
        error = float((want - got.to(want.device)).abs().max() / want.abs().max().clamp(min=1.0))
        worst = max(worst, error)
        if not error <= TOLERANCE:
            raise UnsupportedModel(f"paged attention differs from the model's own by {error:.1e} on a small model")
    return worst


def check_rope(config: PretrainedConfig) -> None:
    """Raises `UnsupportedModel` where rotary frequencies change with the length of the context."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for each in nested or [parameters]:
        if each.get("rope_type") in CHANGING_ROPE:
            raise UnsupportedModel(f"its rotary embedding ({each['rope_type']}) changes with the context's length")


def shrink(config: PretrainedConfig, max_kv_heads: int = 2) -> PretrainedConfig:
    """The same architecture, small: few layers (each kind stays), narrow heads, windows shorter than the test."""
    small = copy.deepcopy(config)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    if not heads:
        raise UnsupportedModel("it has no attention heads")
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    kept_kv_heads = min(kv_heads, max_kv_heads)
    kept_heads = kept_kv_heads * (heads // kv_heads)
    changes: dict[str, Any] = {
        "vocab_size": SMALL_VOCABULARY,
        "hidden_size": kept_heads * SMALL_HEAD,
        "head_dim": SMALL_HEAD,
        "intermediate_size": 4 * SMALL_HEAD,
        "num_attention_heads": kept_heads,
        "num_key_value_heads": kept_kv_heads,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
        **_fewer_layers(config),
    }
    changes |= dict.fromkeys(_windows(config), SMALL_WINDOW)
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            # A derived attribute has no setter and follows from the others.
            with suppress(AttributeError):
                setattr(small, name, value)
    small.dtype = torch.float32
    return small


def _windows(config: PretrainedConfig) -> list[str]:
    """Settings that bound how far a token sees, under whatever name (`sliding_window`, `attention_chunk_size`...)."""
    numbers = [name for name, value in config.to_dict().items() if type(value) is int]
    return [name for name in numbers if ("window" in name or "chunk" in name) and not name.endswith("layers")]


def _fewer_layers(config: PretrainedConfig) -> dict[str, Any]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"num_hidden_layers": SMALL_LAYERS}
    kept = sorted({kinds.index(kind) for kind in kinds})
    kept += [index for index in range(len(kinds)) if index not in kept][: max(SMALL_LAYERS - len(kept), 0)]
    return {"num_hidden_layers": len(kept), "layer_types": [kinds[index] for index in sorted(kept)]}


def _twins(
    config: PretrainedConfig, device: torch.device | None = None, *, fused: bool = False
) -> tuple[PreTrainedModel, PagedModel]:
    """One random float32 model twice: with its own attention on the CPU, and paged, on `device`, its layers `fused`."""
    device = device or torch.device("cpu")
    with without_warnings():
        plain = build_small(config, "eager")
        module = build_small(config, ATTENTION_NAME)
    randomise(plain)
    module.load_state_dict(plain.state_dict())
    module.to(device)  # type: ignore[arg-type]  # declared for a module of another kind
    paged = PagedModel(module, device=device, dtype=torch.float32, vocabulary_size=SMALL_VOCABULARY)
    if fused:
        paged.compiled, paged.independent_rows = True, False
        fuse(module)
    return plain, paged


def build_small(config: PretrainedConfig, attention: str) -> PreTrainedModel:
    """A random float32 model. Raises `UnsupportedModel`."""
    factory: Any = AutoModelForCausalLM  # untyped
    try:
        with torch.random.fork_rng(devices=[]):
            model: PreTrainedModel = factory.from_config(
                copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32, trust_remote_code=False
            )
    except (ValueError, KeyError) as error:
        raise UnsupportedModel(
            f"transformers cannot build it with another attention: {error}".splitlines()[0]
        ) from error
    model.train(False).requires_grad_(False)
    return model


def randomise(model: PreTrainedModel) -> None:
    """Weights so large that attention is far from uniform: with those of a fresh model a lost window hardly shows."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() < 2:
            parameter.add_(0.2 * noise)
        else:
            parameter.copy_(noise * (2.0 / parameter.shape[-1] ** 0.5))


@contextmanager
def without_warnings() -> Iterator[None]:
    """transformers warns of odd small configurations."""
    library = logging.getLogger("transformers")
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)


def _paged_logits(model: PagedModel, sessions: Sequence[Sequence[int]]) -> list[Tensor]:
    """All logits of two sessions, fed together in the pieces of `CHUNKS` over interleaved blocks."""
    model.allocate_cache(8)
    tables = ([1, 4, 6], [5, 0, 3])
    pieces: list[list[Tensor]] = [[], []]
    for cuts in zip(*(pairwise(chunks) for chunks in CHUNKS), strict=True):
        spans = [
            Span(session[first:last], first, table, 0)
            for session, table, (first, last) in zip(sessions, tables, cuts, strict=True)
        ]
        rows = torch.split(model.forward(spans), [last - first for first, last in cuts])
        for piece, row in zip(pieces, rows, strict=True):
            piece.append(row)
    return [torch.cat(piece) for piece in pieces]


def check_rows_independent(model: PagedModel) -> bool:
    """Whether, on this machine and at this model's sizes, rows have the same bits in any batch.

    Compares two sessions that are fed together, in pieces, with each fed alone at once: seven forwards of the real
    model. Uses and leaves a small cache.
    """
    generator = torch.Generator().manual_seed(2)
    sessions = [torch.randint(model.vocabulary_size, (length,), generator=generator).tolist() for length in LENGTHS]
    together = _paged_logits(model, sessions)
    alone = [model.forward([Span(session, 0, [2, 7, 0], 0)]) for session in sessions]
    return all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
