"""The arms that can be measured: a draft in training, a draft as it is served, prompt lookup, an n-gram table."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specmesh.draft.adaptive import ContextMixture
from specmesh.draft.context_voice import own_laws
from specmesh.draft.lookup import LookupSettings, MatchIndex
from specmesh.draft.ngram_file import MAX_ORDER, NgramTable
from specmesh.draft.past import PastMixture
from specmesh.draft.sparse_law import Law, likeliest, sharpen
from specmesh.draft.voice import Head
from specmesh.model.paged import PagedModel
from specmesh.model.spans import Span
from specmesh.training.draft_model import DraftModel
from specmesh.training.measure import MAX_BLOCK_LENGTH, Along, Written, agreement, along_model
from specmesh.training.replay import survival

BLOCK_TOKENS = 16


class TrainedArm:
    """A draft as it is in training."""

    def __init__(self, draft: DraftModel) -> None:
        self._draft = draft

    @torch.inference_mode()
    def along(self, text: Written) -> Along:
        """Draft along a text."""
        with torch.autocast(text.tokens.device.type, torch.bfloat16, enabled=text.tokens.is_cuda):
            logits = self._draft(text.tokens[None])[0, text.first - 1 : -1]
        return along_model(logits, self._draft.token_ids, text)


class ServedArm:
    """A draft as the draft service runs it."""

    def __init__(self, model: PagedModel, max_tokens: int) -> None:
        num_blocks = -(-max_tokens // BLOCK_TOKENS)
        model.allocate_cache(num_blocks)
        self._model = model
        self._table = list(range(num_blocks))
        self._head = Head(model.vocabulary_size, model.token_map)
        everything = torch.arange(model.vocabulary_size)
        self._token_ids = everything if model.token_map is None else model.token_map

    def along(self, text: Written) -> Along:
        """Draft along a text."""
        return along_model(self._logits(text)[:, : len(self._token_ids)], self._token_ids, text)

    def own_laws(self, text: Written) -> list[Law]:
        """The law at temperature 1 of the likeliest ids, at every position that the target wrote."""
        laws = own_laws(self._logits(text), self._head)
        assert all(laws)
        return [law or {} for law in laws]

    @torch.inference_mode()
    def _logits(self, text: Written) -> Tensor:
        return self._model.forward([Span(text.tokens[:-1].tolist(), 0, self._table, text.first - 1)])


class MixedArm:
    """A draft as the draft service runs it, mixed with the session's own past."""

    def __init__(self, draft: ServedArm, weights: Sequence[float]) -> None:
        self._draft = draft
        self._past = PastMixture(weights)

    def along(self, text: Written) -> Along:
        """Draft along a text."""
        own = iter(self._draft.own_laws(text))
        return along_laws(walked(text, self._past.settings, lambda index: self._past.law(next(own), index)), text)


class LookupArm:
    """Prompt lookup, one-hot: a block is what follows an earlier occurrence of the context's end."""

    def __init__(self, settings: LookupSettings) -> None:
        self._settings = settings

    def along(self, text: Written) -> Along:
        """Draft along a text."""
        tokens = text.tokens.tolist()
        index = MatchIndex(self._settings)
        for token in tokens[: text.first]:
            index.push(token)
        guesses, kept = [], []
        for position in range(text.first, len(tokens)):
            block = _looked_up(index)
            guesses.append(block[0] if block else None)
            kept.append(_survives(block, tokens[position : position + MAX_BLOCK_LENGTH]))
            index.push(tokens[position])
        return Along(_share_of_target(guesses, text), np.array(kept))


class ContextArm:
    """An n-gram table mixed with the session's own past."""

    def __init__(self, table: NgramTable) -> None:
        self._mixture = ContextMixture(table, table.context_weights)

    def along(self, text: Written) -> Along:
        """Draft along a text."""
        return along_laws(walked(text, self._mixture.settings, self._mixture.law), text)


class TableArm:
    """An n-gram table alone."""

    def __init__(self, table: NgramTable) -> None:
        self._table = table

    def along(self, text: Written) -> Along:
        """Draft along a text."""
        tokens = text.tokens.tolist()
        contexts = [tokens[max(0, end - MAX_ORDER) : end] for end in range(text.first, len(tokens))]
        if text.temperature == 0:
            return agreement(torch.tensor([self._likeliest(context) for context in contexts]), text)
        target = (text.target_logits.float() / text.temperature).softmax(-1).cpu().numpy()
        overlaps, ratios = [], []
        for context, probs, token in zip(contexts, target, tokens[text.first :], strict=True):
            ids, weights = self._law(context, text.temperature)
            overlaps.append(np.minimum(weights, probs[ids]).sum())
            ratios.append(weights[ids == token].sum() / probs[token])
        return Along(np.array(overlaps), survival(np.array(ratios), MAX_BLOCK_LENGTH, "BLOCK"))

    def _law(self, context: Sequence[int], temperature: float) -> tuple[np.ndarray, np.ndarray]:
        found = self._table.find(context)
        if found is None:
            return np.empty(0, np.int64), np.empty(0)
        ids, probs = found[0].distribution(found[1])
        sharpened = probs ** (1 / temperature)
        return ids, sharpened / sharpened.sum()

    def _likeliest(self, context: Sequence[int]) -> int:
        ids, probs = self._law(context, 1.0)
        return int(ids[probs.argmax()]) if len(ids) else -1


def walked(text: Written, settings: LookupSettings, law: Callable[[MatchIndex], Law]) -> list[Law]:
    """`law` of the context before every token that the target wrote."""
    tokens = text.tokens.tolist()
    index = MatchIndex(settings)
    for token in tokens[: text.first]:
        index.push(token)
    laws = []
    for token in tokens[text.first :]:
        laws.append(law(index))
        index.push(token)
    return laws


def along_laws(laws: Sequence[Law], text: Written) -> Along:
    """Laws at temperature 1, by id, against the target's; an empty one knows nothing."""
    if text.temperature == 0:
        return agreement(torch.tensor([likeliest(law) if law else -1 for law in laws]), text)
    target = (text.target_logits.float() / text.temperature).softmax(-1).cpu().numpy()
    overlaps, ratios = [], []
    for law, probs, token in zip(laws, target, text.tokens[text.first :].tolist(), strict=True):
        sharpened = sharpen(law, text.temperature) if law else {}
        total = sum(sharpened.values()) or 1.0
        overlaps.append(sum(min(weight / total, probs[token_id]) for token_id, weight in sharpened.items()))
        ratios.append(sharpened.get(token, 0.0) / total / probs[token])
    return Along(np.array(overlaps), survival(np.array(ratios), MAX_BLOCK_LENGTH, "BLOCK"))


def _looked_up(index: MatchIndex) -> list[int]:
    """The block it proposes; the index is left as it was."""
    block: list[int] = []
    while len(block) < MAX_BLOCK_LENGTH and (token := index.predict()) is not None:
        block.append(token)
        index.push(token)
    index.resize(len(index.tokens) - len(block))
    return block


def _survives(block: Sequence[int], following: Sequence[int]) -> list[float]:
    kept = [1.0] + [0.0] * MAX_BLOCK_LENGTH
    for offset, (drafted, token) in enumerate(zip(block, following, strict=False)):
        if drafted != token:
            break
        kept[offset + 1] = 1.0
    return kept


def _share_of_target(guesses: Sequence[int | None], text: Written) -> np.ndarray:
    """[n]: the probability that the target gives each guess, 0 for none: the overlap of a one-hot law."""
    logits: Tensor = text.target_logits.float()
    ids = torch.tensor([guess if guess is not None else 0 for guess in guesses], device=logits.device)
    if text.temperature == 0:
        shares = (ids == logits.argmax(-1)).double()
    else:
        shares = (logits / text.temperature).softmax(-1).gather(1, ids[:, None])[:, 0].double()
    made = np.array([guess is not None for guess in guesses])
    return np.asarray(shares.cpu().numpy() * made)
