"""From the configuration to a target and what is said of it. Alone here torch is imported, which takes seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specmesh.kernels.ops import compile_verify_ahead
from specmesh.model.blocks import BLOCK_TOKENS
from specmesh.model.errors import UnsupportedModel
from specmesh.model.place import Place
from specmesh.runtime.build import build_version
from specmesh.runtime.config import ConfigError
from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.runtime.pinning import check_pinned
from specmesh.runtime.types import ServiceInfo
from specmesh.verifier.config import TABLE_PREFIX, EngineConfig, VerifierConfig
from specmesh.verifier.followers import Watchdog
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.service import Tokenizer
from specmesh.verifier.target import TargetModel, load_table

if TYPE_CHECKING:
    from specmesh.model.loading import LoadedModel
    from specmesh.model.paged import PagedModel
    from specmesh.model.ranks import Ranks
    from specmesh.model.sharded import ShardedModel

MAX_BLOCKS = 1 << 18
"""Four million tokens: more bookkeeping than that is not worth its memory, whatever a block costs."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target behind its backend, and what routers are told."""

    backend: PagedBackend
    info: ServiceInfo
    tokenizer: Tokenizer
    end: Callable[[], None]
    """To be called after the backend's last use."""


def load(config: VerifierConfig, place: Place | None = None) -> Loaded:
    """Blocking, from a second to minutes. Raises `ConfigError` naming the key.

    `place`: the first one's, when several processes share the model; they must be on their way (`share_model`).
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.model.startswith(TABLE_PREFIX):
        loaded = _load_table(config, Path(config.model.removeprefix(TABLE_PREFIX)))
    else:
        loaded = _load_model(config, place)
    check_pinned(config.model_digest, loaded.info.model_digest)
    return loaded


def _load_table(config: VerifierConfig, path: Path) -> Loaded:
    try:
        target = load_table(
            path,
            max_context_tokens=config.table.max_context_tokens,
            delay_seconds=config.table.delay_ms / 1000,
        )
        digest = sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: cannot load the table: {error}") from None
    backend = _backend(config, target)
    info = _info(config, backend, kind="table", model_digest=digest, model_name=config.model_name or path.stem)
    return Loaded(backend, info, Tokenizer(), _nothing)


def _nothing() -> None:
    """There is nothing to end."""


def share_model(config: VerifierConfig, place: Place) -> None:
    """Be one of the processes behind the first: load, and do what that does, to its end. Raises as `load` does."""
    from specmesh.model.ranks import follow, join

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    ranks = join(place, config.device)
    follow(_read_model(config, ranks).model, ranks)


def _read_model(config: VerifierConfig, ranks: "Ranks | None") -> "LoadedModel":
    # transformers takes seconds to import, which a table need not pay.
    from specmesh.model.loading import load_model

    try:
        return load_model(
            config.model, dtype=config.dtype, device=config.device, quantization=config.quantization, ranks=ranks
        )
    except (OSError, ValueError, UnsupportedModel) as error:
        raise ConfigError(f"model: cannot serve {config.model}: {error}") from None


def _load_model(config: VerifierConfig, place: Place | None) -> Loaded:
    if place is None:
        model = _read_model(config, None)
        backend = _backend(config, model.model)
        _warm_up(config.engine, model.model, model.model)
        end = _nothing
    else:
        from specmesh.model.ranks import join
        from specmesh.model.sharded import ShardedModel

        ranks = join(place, config.device)
        model = _read_model(config, ranks)
        target = ShardedModel(model.model, ranks)
        backend = _backend(config, target, watch=Watchdog(config.rank_timeout_seconds))
        _warm_up(config.engine, target, model.model)
        end = target.end
    info = _info(
        config,
        backend,
        kind="hf",
        model_digest=model.model_digest,
        model_name=config.model_name or model.name,
        tokenizer_digest=model.tokenizer_digest,
        vocabulary_hashes=model.vocabulary_hashes,
    )
    files = model.tokenizer
    special = tuple(files.special_tokens.items())
    tokenizer = Tokenizer(files.tokenizer_json, files.chat_template, special, tuple(files.eos_token_ids))
    return Loaded(backend, info, tokenizer, end)


def _warm_up(engine: EngineConfig, target: "PagedModel | ShardedModel", model: "PagedModel") -> None:
    """On a GPU: record the forwards of ticks, and compile meanwhile what verifies blocks; `model`: this process's."""
    verification = compile_verify_ahead(
        model.forward([]),
        vocabulary_size=model.vocabulary_size,
        max_block_length=engine.max_block_length,
    )
    target.warm_up(engine.max_verify_rows, engine.max_prefill_tokens)
    verification.finish()


def _backend(config: VerifierConfig, target: TargetModel, watch: Watchdog | None = None) -> PagedBackend:
    """Size the cache: what `kv_memory` holds, and a context no longer than that."""
    num_blocks = min(int(config.kv_memory) // target.bytes_per_block, MAX_BLOCKS)
    if num_blocks < 1:
        raise ConfigError(f"kv_memory: one block of {BLOCK_TOKENS} tokens takes {target.bytes_per_block} bytes")
    limits = [target.max_context_tokens, num_blocks * BLOCK_TOKENS]
    if config.max_context_tokens is not None:
        limits.append(config.max_context_tokens)
    return PagedBackend(
        target,
        num_blocks=num_blocks,
        max_context_tokens=min(limits),
        prefix_sharing=config.prefix_sharing,
        watch=watch,
    )


def _info(
    config: VerifierConfig,
    backend: PagedBackend,
    *,
    kind: str,
    model_digest: str,
    model_name: str,
    tokenizer_digest: str = "",
    vocabulary_hashes: bytes = b"",
) -> ServiceInfo:
    return ServiceInfo(
        contract_version=CONTRACT_VERSION,
        model_digest=model_digest,
        tokenizer_digest=tokenizer_digest,
        vocabulary_size=backend.vocabulary_size,
        max_context_tokens=backend.max_context_tokens,
        kind=kind,
        model_name=model_name,
        build=build_version(),
        vocabulary_hashes=vocabulary_hashes,
        max_block_length=config.engine.max_block_length,
        max_run_tokens=config.engine.max_run_tokens,
    )
