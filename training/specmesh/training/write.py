"""Write: the target answers chat prompts and continues documents. That is the text that drafts must predict."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from specmesh.training.corpus import DOMAINS, Corpus, IntArray, Side
from specmesh.training.decode import Scripts, Writer, Written

SHARES = {"prose": 0.37, "code": 0.37, "json": 0.15, "copying": 0.11}
_SHARE_OF_CHATS = 0.6
_MAX_TURNS = 5


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows that the target wrote. tokens, by_target, valid: [N, L]; domains (index into DOMAINS), temperatures: [N]."""

    tokens: IntArray
    by_target: IntArray
    valid: IntArray
    domains: IntArray
    temperatures: IntArray


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How much to write and how. temperatures: chosen per row with equal chance."""

    domains: Sequence[str]
    num_rows: int
    batch_rows: int
    length: int
    temperatures: Sequence[float]
    seed: int
    max_seconds: float


def write_training_texts(
    model: PreTrainedModel, corpus: Corpus, settings: WriteSettings, report: Callable[[str], None]
) -> Texts:
    """Rows of all domains, prompts one after the other in a row, until `num_rows` or `max_seconds`."""
    random = np.random.default_rng(settings.seed)
    torch.manual_seed(settings.seed)
    temperatures = random.choice(settings.temperatures, size=settings.batch_rows)
    domains = _domains_by_share(settings.batch_rows, settings.domains)
    writer = _writer(model, corpus, settings.length, temperatures)
    began = time.monotonic()
    parts: list[Texts] = []
    while len(parts) * settings.batch_rows < settings.num_rows and time.monotonic() - began < settings.max_seconds:
        rows = [_conversation(corpus.training, DOMAINS[d], corpus.turn_start, random) for d in domains]
        parts.append(_texts(writer.write(_scripts(rows, settings.length)), domains, temperatures))
        written = sum(int(part.by_target.sum()) for part in parts)
        seconds = time.monotonic() - began
        report(f"{len(parts) * settings.batch_rows} rows, {written / 1e6:.2f} M tokens written, {seconds:.0f} s")
    return joined(parts)


def write_held_out_texts(
    model: PreTrainedModel, corpus: Corpus, *, per_domain: int, length: int, temperatures: Sequence[float], seed: int
) -> Texts:
    """One held-out prompt a row: for each domain half chats, half openings, each at every temperature."""
    torch.manual_seed(seed)
    prompts: list[list[IntArray]] = []
    domains: list[int] = []
    for index, domain in enumerate(DOMAINS):
        for kind in (corpus.held_out.chats[domain], corpus.held_out.openings[domain]):
            prompts += [[kind[i]] for i in range(min(per_domain // 2, len(kind)))]
        domains += [index] * (len(prompts) - len(domains))
    of_rows = np.repeat(np.asarray(temperatures, dtype=np.float64), len(prompts))
    writer = _writer(model, corpus, length, of_rows)
    written = writer.write(_scripts(prompts * len(temperatures), length))
    return _texts(written, np.tile(np.asarray(domains), len(temperatures)), of_rows)


def save_texts(texts: Texts, path: Path) -> None:
    """Write one .npz file; masks take one bit a token, nothing is compressed."""
    np.savez(
        path,
        tokens=texts.tokens,
        by_target=np.packbits(texts.by_target, axis=1),
        valid=np.packbits(texts.valid, axis=1),
        domains=texts.domains,
        temperatures=texts.temperatures,
        allow_pickle=False,
    )


def load_texts(path: Path) -> Texts:
    """Read what `save_texts` wrote."""
    with np.load(path) as arrays:
        length = arrays["tokens"].shape[1]
        masks = {
            name: np.unpackbits(arrays[name], axis=1, count=length).astype(bool) for name in ("by_target", "valid")
        }
        return Texts(arrays["tokens"], masks["by_target"], masks["valid"], arrays["domains"], arrays["temperatures"])


def _domains_by_share(num_rows: int, domains: Sequence[str]) -> IntArray:
    """[num_rows]: an index into DOMAINS for each row."""
    bounds = np.cumsum([SHARES[domain] for domain in domains])
    indices = np.array([DOMAINS.index(domain) for domain in domains])
    domains_of_rows: IntArray = indices[np.searchsorted(bounds, (np.arange(num_rows) + 0.5) / num_rows * bounds[-1])]
    return domains_of_rows


def _writer(model: PreTrainedModel, corpus: Corpus, length: int, temperatures: IntArray) -> Writer:
    of_rows = torch.as_tensor(temperatures, dtype=torch.float32)
    return Writer(model, num_rows=len(of_rows), length=length, temperatures=of_rows, end_ids=corpus.end_ids)


def _conversation(side: Side, domain: str, turn_start: int, random: np.random.Generator) -> list[IntArray]:
    """What a row is told: a chat and further turns of it, or an opening and, should that ever end, a chat."""
    chats = side.chats[domain]
    chosen = [chats[int(i)] for i in random.integers(len(chats), size=_MAX_TURNS)]
    if random.random() < _SHARE_OF_CHATS:
        return [chosen[0], *(chat[turn_start:] for chat in chosen[1:])]
    openings = side.openings[domain]
    return [openings[int(random.integers(len(openings)))], chosen[0], *(chat[turn_start:] for chat in chosen[1:])]


def _scripts(rows: Sequence[Sequence[IntArray]], length: int) -> Scripts:
    tokens = np.zeros((len(rows), length), dtype=np.int64)
    last = np.zeros((len(rows), length), dtype=bool)
    lengths = np.zeros((len(rows), 1), dtype=np.int64)
    for row, prompts in enumerate(rows):
        laid = np.concatenate([prompt.astype(np.int64) for prompt in prompts])[:length]
        tokens[row, : len(laid)], lengths[row] = laid, len(laid)
        ends = np.cumsum([len(prompt) for prompt in prompts]) - 1
        last[row, ends[ends < length]] = True
    return Scripts(torch.from_numpy(tokens), torch.from_numpy(last), torch.from_numpy(lengths))


def _texts(written: Written, domains: IntArray, temperatures: IntArray) -> Texts:
    tokens = written.tokens.cpu().numpy()
    narrow = np.uint16 if int(tokens.max()) < 1 << 16 else np.uint32
    by_target, valid = written.by_target.cpu().numpy(), written.valid.cpu().numpy()
    return Texts(tokens.astype(narrow), by_target, valid, domains.astype(np.int8), temperatures)


def joined(parts: Sequence[Texts]) -> Texts:
    """Rows end to end; all of one length."""
    columns = ("tokens", "by_target", "valid", "domains", "temperatures")
    return Texts(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))
