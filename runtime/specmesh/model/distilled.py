"""Distilled drafts: a target's first layers and an output head over part of its vocabulary, stored as int8.

A draft's folder holds `config.json` (a transformers configuration, and under `specmesh_draft` the digests),
`model.safetensors` and a model card. Every matrix NAME is int8 [R, C] with `NAME.scale` float16 [R, 1]; vectors are
float16. Stored are the decoder's layers and last norm, `token_ids` int32 [W], ascending, and the head in three parts:
`head = E[token_ids] @ head.mix + head.rows @ head.basis`. E, the target's output embedding [V, width], and its input
embedding are not stored: they come from the target's own package.
"""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from specmesh.model.attention import ATTENTION_NAME
from specmesh.model.checks import check_architecture, check_rows_independent
from specmesh.model.errors import UnsupportedModel
from specmesh.model.loading import LoadedModel, resolve, resolve_dtype
from specmesh.model.paged import PagedModel
from specmesh.model.tokenizer_files import TokenizerFiles, digest_of, read_json, read_tokenizer_files
from specmesh.model.vocabulary import vocabulary_of
from specmesh.runtime.sources import DEMO

ABOUT = "specmesh_draft"
"""The key of config.json with `name`, `sha256` of the weights and `embedding_sha256` of the target's embedding."""
SCALE = ".scale"
INPUT_EMBEDDING = "embed_tokens.weight"
OUTPUT_EMBEDDING = "lm_head.weight"


def load_distilled(
    name_or_dir: str | Path, target_source: str | Path = DEMO, *, dtype: str = "auto", device: str = "cpu"
) -> LoadedModel:
    """Load a distilled draft and check it.

    `name_or_dir`: a draft that this installation ships, or a draft's folder. `target_source`: as `load_model` takes it,
    the target it was distilled from. Raises ValueError for weights or a target that are not those of its digests, and
    what `load_model` raises.
    """
    folder = find_draft(name_or_dir)
    about = read_about(folder)
    target = resolve(target_source)
    embedding, output_embedding = read_embeddings(target)
    if embedding_digest(embedding) != about["embedding_sha256"]:
        raise ValueError(f"{about['name']} was distilled from another target than {target_source}")
    tokenizer = read_tokenizer_files(target)
    vocabulary = vocabulary_of(tokenizer.tokenizer_json)
    torch_dtype = resolve_dtype(dtype, torch.device(device))
    model = assemble(
        folder, embedding, output_embedding, dtype=torch_dtype, device=device, vocabulary_size=vocabulary.size
    )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        model_digest=_digest(about, torch_dtype, tokenizer),
        tokenizer_digest=vocabulary.digest,
        vocabulary_hashes=vocabulary.hashes,
        name=about["name"],
    )


def assemble(
    folder: Path,
    embedding: Tensor,
    output_embedding: Tensor,
    *,
    dtype: torch.dtype,
    device: str,
    vocabulary_size: int,
) -> PagedModel:
    """The draft in `folder`, its weights checked, on embeddings [V, width] that need not be those it was made with.

    With others it says other things; what is emitted is right whatever it says. Raises ValueError.
    """
    about = read_about(folder)
    tensors = dequantise(load_tensors(_checked(folder / "model.safetensors", about)))
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    check_architecture(config)
    module: Any = _assemble(config, tensors, embedding, output_embedding)  # the stubs of `to` are wrong
    model = PagedModel(
        module.to(device, dtype),
        device=device,
        dtype=dtype,
        vocabulary_size=min(vocabulary_size, len(embedding)),
        token_map=tensors["token_ids"].to(device),
    )
    if model.independent_rows and not check_rows_independent(model):
        model.independent_rows = False  # a draft's rows need not be: they are exact whatever they are
    return model


def _digest(about: Mapping[str, Any], dtype: torch.dtype, tokenizer: TokenizerFiles) -> str:
    parts = (about["sha256"], about["embedding_sha256"], str(dtype), digest_of(tokenizer))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def find_draft(name_or_dir: str | Path) -> Path:
    """The folder of a draft. Raises ValueError where there is none."""
    shipped = Path(str(files("specmesh.draft"))) / "weights" / str(name_or_dir)
    for folder in (Path(name_or_dir), shipped):
        if (folder / "model.safetensors").is_file():
            return folder
    raise ValueError(f"no distilled draft is called {name_or_dir}, and it is no folder that holds one")


def read_about(folder: Path) -> Mapping[str, Any]:
    """What config.json says of the draft itself. Raises ValueError where it says nothing."""
    about: Mapping[str, Any] | None = read_json(folder / "config.json").get(ABOUT)
    if about is None:
        raise ValueError(f"{folder.name}: config.json holds no `{ABOUT}`")
    return about


def _checked(path: Path, about: Mapping[str, Any]) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise ValueError(f"{about['name']}: the weights' digest is not the one in config.json")
    return content


def dequantise(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 tensors of a draft's file; `token_ids` as int64."""
    tensors = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        if name == "token_ids":
            tensors[name] = tensor.long()
        elif name + SCALE in stored:
            tensors[name] = tensor.float() * stored[name + SCALE].float()
        else:
            tensors[name] = tensor.float()
    return tensors


def head_weight(output_embedding: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """The output head [W, width], from the target's output embedding [V, width] and a draft's dequantised tensors."""
    own = output_embedding[tensors["token_ids"]].to(torch.float32)
    return own @ tensors["head.mix"] + tensors["head.rows"] @ tensors["head.basis"]


def read_embeddings(target: Path) -> tuple[Tensor, Tensor]:
    """Input and output embedding [V, width] of a target's folder; the same tensor where they are tied."""
    found: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                if name.endswith((INPUT_EMBEDDING, OUTPUT_EMBEDDING)):
                    found[name.split(".")[-2]] = tensors.get_tensor(name)
    if "embed_tokens" not in found:
        raise UnsupportedModel(f"{target.name} holds no tensor called {INPUT_EMBEDDING}")
    return found["embed_tokens"], found.get("lm_head", found["embed_tokens"])


def embedding_digest(embedding: Tensor) -> str:
    """SHA-256 hex of an embedding's values in bfloat16: which target it is, however its package stores it."""
    return hashlib.sha256(embedding.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()).hexdigest()


def _assemble(
    config: PretrainedConfig, tensors: Mapping[str, Tensor], embedding: Tensor, output_embedding: Tensor
) -> PreTrainedModel:
    """The causal LM, in float32: its own layers, the target's embedding, a head of W rows."""
    auto: Any = AutoModelForCausalLM  # untyped
    module = auto.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION_NAME)
    decoder = module.get_decoder()
    layers = {name: t for name, t in tensors.items() if name != "token_ids" and not name.startswith("head.")}
    wrong = decoder.load_state_dict(layers, strict=False)
    if wrong.unexpected_keys or set(wrong.missing_keys) != {INPUT_EMBEDDING}:
        raise ValueError(f"tensors missing {sorted(wrong.missing_keys)}, not expected {sorted(wrong.unexpected_keys)}")
    shared = nn.Embedding(embedding.shape[0], embedding.shape[1], _weight=embedding.float())
    module.set_input_embeddings(shared)
    weight = head_weight(output_embedding, tensors)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = nn.Parameter(weight, requires_grad=False)
    module.set_output_embeddings(head)
    assembled: PreTrainedModel = module
    return assembled
