"""Stop strings: the same outcome in any split, no prefix shown, nothing lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_fallback, of_pieces, to_bytes

from specmesh.router.text import StopMatcher, TextDelta, Tokenizer
from specmesh.runtime.errors import InvalidValue


def shown_by(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    """What is shown after each piece (and at the end), and the stop that matched."""
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    return [*shown, matcher.finish()], matcher.matched


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "matched"),
    [
        (["al", "pha ", "be", "ta", " ga"], "beta", ["al", "pha ", "", "", "", ""], "beta"),
        (["The quick brown", " fox"], "own fox", ["The quick br", "", ""], "own fox"),
        (["The quick brown", " fox"], "own cat", ["The quick br", "own fox", ""], None),
        (["The quick brown"], "own cat", ["The quick br", "own"], None),
        (["a", "a", "a", "b"], "aab", ["", "", "a", "", ""], "aab"),
    ],
)
def test_a_stop_string_is_found_across_pieces(
    pieces: list[str], stop: str, shown: list[str], matched: str | None
) -> None:
    """C11: text up to the stop, a prefix of it never shown, and nothing lost when it does not come."""
    assert shown_by(pieces, [stop]) == (shown, matched)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first end at which a stop is complete; the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_of_two_stops_complete_at_once_the_longer_wins_so_that_none_of_it_is_shown() -> None:
    for stops in (["c", "bc"], ["bc", "c"]):
        assert shown_by(["ab", "c"], stops) == (["a", "", ""], "bc")


short_texts = st.text(alphabet="abé", max_size=24)


@given(text=short_texts, stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=16), data=st.data())
def test_any_split_gives_the_outcome_of_the_whole(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    shown, matched = shown_by(pieces, stops)
    assert ("".join(shown), matched) == naive(text, stops)


@given(text=short_texts, stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=4))
def test_what_is_shown_never_ends_in_a_prefix_that_could_still_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen, whole = "", ""
    for character in text:
        seen += matcher.push(character)
        whole += character
        if matcher.matched is None:
            held = whole[len(seen) :]
            assert all(len(held) >= n for stop in stops for n in range(1, len(stop)) if whole.endswith(stop[:n]))
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_sixteen_strings_of_256_bytes_are_allowed_and_one_more_of_either_is_not() -> None:
    StopMatcher([str(i).rjust(256, "x") for i in range(16)])
    for strings, field in [
        (["a"] * 17, "stop.strings"),
        (["ok", "x" * 257], "stop.strings[1]"),
        (["é" * 129], "stop.strings[0]"),
        (["ok", ""], "stop.strings[1]"),
    ]:
        with pytest.raises(InvalidValue) as refusal:
            StopMatcher(strings)
        assert refusal.value.field == field


def test_a_stream_counts_the_tokens_up_to_the_one_that_completed_the_stop() -> None:
    """C11, by tokens: what comes after the stop is not shown and does not count."""
    pieces = ["al", "pha ", "be", "ta", " ga"]
    stream = Tokenizer(to_bytes(of_pieces(pieces))).stream(["beta"])
    assert stream.push([0, 1]) == TextDelta("alpha ", None, 2)
    assert stream.push([2, 3, 4, 0]) == TextDelta("", "beta", 2)
    assert stream.push([0]) == TextDelta("", "beta", 0)
    assert stream.finish() == ""


def test_the_end_gives_what_was_held_for_a_stop_that_did_not_come() -> None:
    stream = Tokenizer(to_bytes(of_pieces(["own ca", "r"]))).stream(["own cat"])
    assert stream.push([0]) == TextDelta("", None, 1)
    assert stream.finish() == "own ca"


def test_a_stop_inside_one_token_cuts_its_text() -> None:
    stream = Tokenizer(to_bytes(of_pieces(["one. two", "x"]))).stream(["."])
    assert stream.push([0, 1]) == TextDelta("one", ".", 1)


def test_a_resumed_stream_goes_on_where_the_first_one_was_cut() -> None:
    pieces = ["al", "pha ", "be", "ta", " ga"]
    tokenizer = Tokenizer(to_bytes(of_pieces(pieces)))
    for cut in range(6):
        first = tokenizer.stream(["beta!"])
        sent = first.push([0, 1, 2, 3, 4][:cut]).text
        resumed = tokenizer.stream(["beta!"])
        resumed.push([0, 1, 2, 3, 4][:cut])
        rest = resumed.push([0, 1, 2, 3, 4][cut:]).text + resumed.finish()
        assert sent + rest == "alpha beta ga"


def test_a_stop_that_only_the_end_settles_is_found_there() -> None:
    """Byte tokens are held until their run ends; the run may hold a stop string."""
    tokenizer = Tokenizer(to_bytes(byte_fallback(strip=False)))
    stream = tokenizer.stream(["🙂"])
    token_ids = tokenizer.encode_text("b🙂")
    assert "🙂" not in stream.push(token_ids).text
    assert stream.finish() == ""
    assert stream.stop == "🙂"
