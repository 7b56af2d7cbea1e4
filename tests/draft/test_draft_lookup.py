"""Kind `lookup`: what it proposes, and that it is a function of the context alone."""

import math

import numpy as np
import pytest
from draft_peers import ask_for, draft_peer
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.draft.drafter import make_drafter
from specmesh.draft.lookup import LookupDrafter, LookupSettings, MatchIndex
from specmesh.runtime.config import ConfigError
from specmesh.runtime.errors import InvalidValue
from specmesh.runtime.types import Rule, Sampling

SETTINGS = LookupSettings(min_match=2, max_match=4, max_candidates=1000)


def by_definition(tokens: list[int], settings: LookupSettings) -> int | None:
    """The token after the longest, then latest, earlier occurrence of the end of `tokens`."""
    for length in range(settings.max_match, settings.min_match - 1, -1):
        ending = tokens[-length:]
        for end in range(len(tokens) - 1, length - 1, -1):
            if len(ending) == length and tokens[end - length : end] == ending:
                return tokens[end]
    return None


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_the_index_finds_what_the_definition_says(tokens: list[int], min_match: int) -> None:
    given_settings = LookupSettings(min_match=min_match, max_match=4, max_candidates=1000)
    index = MatchIndex(given_settings)
    for place, token in enumerate(tokens):
        assert index.predict() == by_definition(tokens[:place], given_settings)
        index.push(token)
    assert index.predict() == by_definition(tokens, given_settings)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=20), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_popping_undoes_pushing(tokens: list[int], more: list[int], length: int) -> None:
    """What was drafted and rejected leaves nothing in the index."""
    index, fresh = MatchIndex(SETTINGS), MatchIndex(SETTINGS)
    for token in tokens:
        index.push(token)
    index.resize(length)
    for token in [*tokens[:length], *more]:
        fresh.push(token)
    for token in more:
        index.push(token)
    assert index.tokens == fresh.tokens
    assert index.predict() == fresh.predict()


async def test_it_copies_what_followed_before_in_one_frame_and_without_rows() -> None:
    async with draft_peer(LookupDrafter(SETTINGS)) as peer:
        context = [10, 11, 12, 13, 14, 15, 90, 10, 11]
        answer = await peer.talk.ask(ask_for(context, 9, 4))
        assert (answer.token_ids, answer.rows, answer.logprobs) == ([12, 13, 14, 15], [], [0, 0, 0, 0])
        assert (answer.reason, answer.num_frames) == ("LENGTH", 1)


async def test_the_longest_match_wins_then_the_latest() -> None:
    async with draft_peer(LookupDrafter(SETTINGS)) as peer:
        longest = [1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3]
        assert (await peer.talk.ask(ask_for(longest, 11, 1))).token_ids == [50]
        latest = [2, 3, 50, 9, 2, 3, 60, 7, 2, 3]
        assert (await peer.talk.ask(ask_for(latest, 10, 1, session_id=2))).token_ids == [60]


async def test_nothing_that_recurs_is_nothing_to_propose() -> None:
    async with draft_peer(LookupDrafter(SETTINGS)) as peer:
        answer = await peer.talk.ask(ask_for([1, 2, 3, 4], 4, 4))
        assert (answer.token_ids, answer.reason) == ([], "CONFIDENCE")


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.7])
async def test_it_is_one_hot_under_every_rule_and_temperature(rule: Rule, temperature: float) -> None:
    async with draft_peer(LookupDrafter(SETTINGS)) as peer:
        ask = ask_for([1, 2, 3, 1, 2], 5, 2, rule=rule, sampling=Sampling(temperature=temperature, top_k=2))
        answer = await peer.talk.ask(ask)
        assert (answer.token_ids, answer.rows) == ([3, 1], [])


async def test_scores_say_what_a_block_there_would_have_proposed() -> None:
    """Over a whole text, every place: 0 where a block of one that starts there has the token, else -inf."""
    text = np.random.default_rng(5).integers(0, 3, size=60).tolist()
    async with draft_peer(LookupDrafter(SETTINGS)) as peer, draft_peer(LookupDrafter(SETTINGS)) as other:
        at = 4
        await peer.talk.ask(ask_for(text[:at], at, 5))
        while at < len(text):
            after = min(at + 3, len(text))
            ask = ask_for(text[:after], after - at, 5, rule=Rule.COUPLED, want_scores=True)
            scored = await peer.talk.ask(ask)
            assert scored.end is not None
            for place in range(at, after):
                there = await other.talk.ask(ask_for(text[:place], 1 if place > 4 else 4, 1))
                hit = there.token_ids == text[place : place + 1]
                assert scored.end.delta_logprobs[place - at] == (0.0 if hit else -math.inf)
                assert scored.end.delta_guessed[place - at] == hit
            at = after


async def test_a_replica_that_got_the_context_by_open_proposes_the_same() -> None:
    text = np.random.default_rng(6).integers(0, 4, size=300).tolist()
    async with draft_peer(LookupDrafter(SETTINGS)) as peer, draft_peer(LookupDrafter(SETTINGS)) as other:
        for position in range(10, 300, 7):
            stepwise = await peer.talk.ask_or_open(ask_for(text[:position], min(7, position), 5), text[:position])
            await other.talk.open(1, text[:position])
            at_once = await other.talk.ask(ask_for(text[:position], 0, 5))
            assert stepwise.token_ids == at_once.token_ids


def test_settings_and_kinds_that_do_not_exist_are_named() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.min_mach"):
        make_drafter("lookup", {"min_mach": 2})
    with pytest.raises(ConfigError, match=r"^drafter\.min_match: must not exceed"):
        make_drafter("lookup", {"min_match": 5, "max_match": 4})
    with pytest.raises(InvalidValue, match="kind: unknown kind of draft"):
        make_drafter("eagle", {})
