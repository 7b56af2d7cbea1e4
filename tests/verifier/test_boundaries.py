"""Boundaries and penalties through the engine's own steps, whatever was drafted."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from law_literal import scores
from verifier_parts import make_spec, random_logits, successor_logits, table_stepper

from specmesh.runtime.types import FinishReason, Rule, Sampling

COUNTING = successor_logits({}, 32)
"""Greedily, t is followed by t + 1."""
LOGITS = random_logits(6, seed=4, scale=1.0)
PENALISED = Sampling(temperature=0.0, frequency_penalty=0.3, presence_penalty=0.4, repetition_penalty=1.2)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("max_output_tokens", [1, 2, 3, 4, 5, 50])
@pytest.mark.parametrize("stop", [5, 6, 7, 8, 9, 30])
def test_a_boundary_cuts_logprobs_and_counts_with_the_tokens(rule: Rule, max_output_tokens: int, stop: int) -> None:
    """C9, C10, C13: block [5, 6, 7, 8], all right, cut at a stop id or at a length; a tie goes to the stop."""
    stepper = table_stepper(COUNTING)
    stop_ids = frozenset({stop})
    stepper.open(make_spec([3, 4], rule=rule, max_output_tokens=max_output_tokens, stop_token_ids=stop_ids, logprobs=1))
    result = stepper.step(1, 2, [5, 6, 7, 8])
    text = [5, 6, 7, 8, 9][:max_output_tokens]
    text = text[: text.index(stop) + 1] if stop in text else text
    stopped, full = text[-1] == stop, len(text) == max_output_tokens
    assert result.token_ids == tuple(text)
    assert [each.top[0][0] for each in result.logprobs] == text
    kept = min(len(text), 4, max_output_tokens - 1)  # the last token that fits is the target's own
    assert (result.num_accepted, result.num_drafted) == (kept, kept)
    assert result.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH if full else None)
    assert result.stop_token_id == (stop if stopped else None)
    assert (("router", 1) in stepper.core.sessions) == (not stopped and not full)


def by_hand(context: Sequence[int], num_tokens: int) -> list[int]:
    """Greedy text under penalties that count the whole context, one token at a time."""
    grown = list(context)
    for _ in range(num_tokens):
        adjusted = scores(LOGITS[grown[-2], grown[-1]].tolist(), PENALISED, Counter(grown))
        grown.append(max(range(6), key=adjusted.__getitem__))
    return grown[len(context) :]


def right(text: Sequence[int], position: int) -> list[int]:
    return list(text[position : position + 4])


def wrong_in_the_middle(text: Sequence[int], position: int) -> list[int]:
    block = right(text, position)
    return [*block[:2], *((token + 1) % 6 for token in block[2:])]


def all_wrong(text: Sequence[int], position: int) -> list[int]:
    return [(token + 1) % 6 for token in right(text, position)]


def one_token_again_and_again(text: Sequence[int], position: int) -> list[int]:
    return [text[position - 1]] * 4


@pytest.mark.parametrize("draft", [right, wrong_in_the_middle, all_wrong, one_token_again_and_again])
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("num_before", [0, 13])
def test_penalties_count_what_was_emitted_and_nothing_that_was_rejected(
    draft: Callable[[Sequence[int], int], list[int]], rule: Rule, num_before: int
) -> None:
    """C12 over many steps, and C16: a session begun or taken up again; what a draft made up is not counted."""
    prompt = [2, 3]
    text = [*prompt, *by_hand(prompt, 40)]
    assert len(set(text)) > 3
    stepper = table_stepper(LOGITS)
    context = text[: 2 + num_before]
    stepper.open(make_spec(context, prompt_length=2, rule=rule, sampling=PENALISED, max_output_tokens=40))
    emitted: list[int] = []
    num_accepted = 0
    while len(context) + len(emitted) < len(text):
        position = len(context) + len(emitted)
        result = stepper.step(1, position, draft(text, position))
        emitted += result.token_ids
        num_accepted += result.num_accepted
    assert [*context, *emitted] == text
    assert (num_accepted > 0) == (draft is not all_wrong)
