"""What a verifier hands out of its tokenizer, read from a model's folder. No torch, no transformers."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`chat_template` is empty where the model has none; `special_tokens` maps roles such as `eos_token` to text."""

    tokenizer_json: bytes
    chat_template: str
    special_tokens: dict[str, str]
    eos_token_ids: tuple[int, ...]


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """From tokenizer.json and, where they exist, the files beside it. Raises ValueError without a tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"no tokenizer.json in {folder}")
    tokenizer_json = path.read_bytes()
    settings = read_json(folder / "tokenizer_config.json")
    special = _special_tokens(settings) or _special_tokens(read_json(folder / "special_tokens_map.json"))
    return TokenizerFiles(
        tokenizer_json, _chat_template(folder, settings), special, _eos_token_ids(folder, tokenizer_json, special)
    )


def digest_of(files: TokenizerFiles) -> str:
    """SHA-256 hex over all that turns text into ids and back: tokenizer, template, special tokens, ends of text."""
    parts = [
        files.tokenizer_json,
        files.chat_template.encode(),
        json.dumps(files.special_tokens, sort_keys=True).encode(),
        json.dumps(files.eos_token_ids).encode(),
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no such file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """A token is its text, or an object that holds it as `content`."""
    found = {name: settings[name] for name in SPECIAL_TOKENS if settings.get(name)}
    return {name: token if isinstance(token, str) else token["content"] for name, token in found.items()}


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template") or ""
    if isinstance(template, str):
        return template
    named = {entry["name"]: entry["template"] for entry in template}
    return str(named.get("default", ""))


def _eos_token_ids(folder: Path, tokenizer_json: bytes, special: Mapping[str, str]) -> tuple[int, ...]:
    """All ids that end a text: of generation_config.json, else config.json, and the tokenizer's own."""
    stated = [read_json(folder / name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
    chosen: int | list[int] = next((ids for ids in stated if ids is not None), [])
    ids = set(chosen if isinstance(chosen, list) else [chosen])
    for added in json.loads(tokenizer_json).get("added_tokens", []):
        if added["content"] == special.get("eos_token"):
            ids.add(added["id"])
    return tuple(sorted(ids))
