"""From a name to a model that can be served: weights, tokenizer, and what says which ones they are."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.checks import check_architecture, check_rows_independent, fuse_where_equal
from specmesh.model.demo import DEMO_NAME, demo_folder
from specmesh.model.errors import UnsupportedModel
from specmesh.model.gguf import converted
from specmesh.model.paged import PagedModel
from specmesh.model.quantization import check_quantization, check_quantized, quantization_config, quantized_dtype
from specmesh.model.ranks import Ranks
from specmesh.model.sharding import check_divides, check_sharded, sharded_options
from specmesh.model.tokenizer_files import TokenizerFiles, digest_of, read_json, read_tokenizer_files
from specmesh.model.vocabulary import vocabulary_of
from specmesh.runtime.sources import DEMO, source_fault

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NOT_THE_LAW = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "auto_map")
"""Keys of config.json that do not change what a model computes."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and what services say of it.

    `model_digest`: SHA-256 hex over weights, configuration, dtype, quantisation and tokenizer. `tokenizer_digest` and
    `vocabulary_hashes`: see `Vocabulary`.
    """

    model: PagedModel
    tokenizer: TokenizerFiles
    model_digest: str
    tokenizer_digest: str
    vocabulary_hashes: bytes
    name: str


def load_model(
    source: str | Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    quantization: str | None = None,
    ranks: Ranks | None = None,
) -> LoadedModel:
    """Load and check a model.

    `source`: `demo`; a folder with config.json, *.safetensors and tokenizer.json; a .gguf file (converted once); or a
    name on the hub. `dtype`: `auto`, `float32`, `bfloat16`, `float16`. `quantization`: None, `nf4`, `int8`. `ranks`:
    load this rank's share, on its device; all ranks call it together, and the digest of the model is the first's only.
    Raises ValueError or OSError for a source that cannot be read or an option that is not known, and
    `UnsupportedModel` for a model that would not be served rightly.
    """
    folder = resolve(source)
    device = str(ranks.device) if ranks else device
    check_quantization(quantization)
    torch_dtype = quantized_dtype(quantization, resolve_dtype(dtype, torch.device(device)), dtype)
    config = read_config(folder)
    tokenizer = read_tokenizer_files(folder)
    vocabulary = vocabulary_of(tokenizer.tokenizer_json)
    # A tokenizer may know more ids than the head has columns, and a head may be padded.
    size = min(vocabulary.size, config.get_text_config().vocab_size)
    with ThreadPoolExecutor(1) as pool:
        first = ranks is None or ranks.rank == 0
        digest = pool.submit(model_digest, folder, torch_dtype, quantization, tokenizer) if first else None
        module = _load_checked(folder, config, torch_dtype, device, quantization, ranks)
        model = PagedModel(module, device=device, dtype=torch_dtype, vocabulary_size=size)
        _settle_independence(model, ranks)
        if model.compiled and ranks is None:
            fuse_where_equal(model)
        return LoadedModel(
            model=model,
            tokenizer=tokenizer,
            model_digest=digest.result() if digest else "",
            tokenizer_digest=vocabulary.digest,
            vocabulary_hashes=vocabulary.hashes,
            name=DEMO_NAME if source == DEMO else Path(source).stem if Path(source).is_file() else Path(source).name,
        )


def _load_checked(
    folder: Path,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: str,
    quantization: str | None,
    ranks: Ranks | None,
) -> PreTrainedModel:
    """The module, after and with everything that is proved of its kind; see `load_model`."""
    check_architecture(config)
    if ranks is not None:
        if quantization is not None:
            raise ValueError("quantization: not for a model over several ranks")
        check_divides(config, ranks.size)
        check_sharded(config, ranks, partial(_load_module, options=sharded_options(ranks)))
        return _load_module(folder, dtype, sharded_options(ranks))
    options: dict[str, Any] = {}
    if quantization is not None:
        options["quantization_config"] = quantization_config(quantization, dtype)
    if device != "cpu" or quantization is not None:
        options["device_map"] = {"": device}
    module = _load_module(folder, dtype, options)
    if quantization is not None:
        check_quantized(module, quantization, dtype)
    return module


def _settle_independence(model: PagedModel, ranks: Ranks | None) -> None:
    """Keep a row's bits independent of its neighbours where that was promised and is so, on every rank or on none."""
    if model.independent_rows:
        independent = check_rows_independent(model)
        model.independent_rows = ranks.agree(independent) if ranks else independent
    if model.independent_rows:
        logger.info("rows are independent of their batch: a seed, or temperature 0, gives the same text every time")
    else:
        why = "on this machine" if model.dtype == torch.float32 else f"in {model.dtype}".replace("torch.", "")
        logger.warning(
            f"rows are not independent {why}: near-ties may fall otherwise in another batch, so a seed or "
            "temperature 0 may give another text; dtype = float32 on a CPU keeps that promise"
        )


def resolve(source: str | Path) -> Path:
    """The folder with a source's files, fetched or converted on first use. Raises ValueError or OSError."""
    if source == DEMO:
        return demo_folder()
    path = Path(source)
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        return converted(path)
    if fault := source_fault(source):
        raise ValueError(fault)
    return _from_hub(str(source))


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ValueError(f"{name} cannot be had from the hub: {type(error).__name__}") from error


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it, else float32. Raises ValueError for an unknown name."""
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f"dtype: {name} is not one of auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if device.type == "cpu" and has_bfloat16_products() else torch.float32


def has_bfloat16_products() -> bool:
    """Whether this machine's processor multiplies bfloat16, so that a few rows cost what one does."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def read_config(folder: Path) -> PretrainedConfig:
    """Of a folder that holds safetensors. Raises `UnsupportedModel` for other weights and for code of its own."""
    if not any(folder.glob("*.safetensors")):
        raise UnsupportedModel(f"{folder.name} holds no *.safetensors, and other formats may run code when read")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        custom = "auto_map" in read_json(folder / "config.json")
        reason = "it needs code from its own repository" if custom else "transformers does not know it"
        raise UnsupportedModel(f"{reason}: {error}".splitlines()[0]) from error
    return config


def _load_module(folder: Path, dtype: torch.dtype, options: Mapping[str, Any]) -> PreTrainedModel:
    with _without_progress_bar():
        module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            **options,
        )
    return module


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """A bar of some tenths of a second would only tear a service's log lines."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def model_digest(folder: Path, dtype: torch.dtype, quantization: str | None, tokenizer: TokenizerFiles) -> str:
    """SHA-256 hex over the weight files, what of config.json is law, the dtype, the quantisation and the tokenizer."""
    digest = hashlib.sha256(f"{dtype} {quantization} {digest_of(tokenizer)}".encode())
    config = {key: value for key, value in read_json(folder / "config.json").items() if key not in NOT_THE_LAW}
    digest.update(json.dumps(config, sort_keys=True).encode())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
