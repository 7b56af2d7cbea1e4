"""Incremental detokenizing equals decoding the whole, for every kind of tokenizer and any token sequence."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import byte_fallback, byte_level_bpe, every_kind, metaspace, to_bytes

from specmesh.router.text import Tokenizer, UnsupportedDecoder
from specmesh.router.text.decoding import ALPHABET

KINDS = every_kind()
OURS = {name: Tokenizer(to_bytes(tokenizer)) for name, tokenizer in KINDS.items()}


@pytest.mark.parametrize("name", sorted(KINDS))
@settings(max_examples=300, deadline=None)  # a busy machine is no fault
@given(data=st.data())
def test_deltas_joined_equal_the_full_decode(name: str, data: st.DataObject) -> None:
    """Unknown ids and broken characters included."""
    theirs = KINDS[name]
    token_ids = data.draw(st.lists(st.integers(0, theirs.get_vocab_size() + 2), max_size=24))
    detokenizer = OURS[name].detokenizer()
    text = "".join(detokenizer.push(token_id) for token_id in token_ids) + detokenizer.finish()
    assert text == theirs.decode(token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="▁"), max_size=20))
def test_no_delta_holds_part_of_a_character(name: str, text: str) -> None:
    tokenizer = OURS[name]
    detokenizer = tokenizer.detokenizer()
    deltas = [detokenizer.push(token_id) for token_id in tokenizer.encode_text(text)]
    assert "\ufffd" not in "".join(deltas) or "\ufffd" in text


@given(raw=st.binary(max_size=24))
def test_arbitrary_bytes_decode_as_a_whole_would(raw: bytes) -> None:
    theirs = KINDS["byte_level"]
    alphabet = {byte: character for character, byte in ALPHABET.items()}
    token_ids = [theirs.token_to_id(alphabet[byte]) for byte in raw]
    assert OURS["byte_level"].decode(token_ids) == raw.decode(errors="replace")


def test_a_character_of_several_tokens_appears_when_it_is_whole() -> None:
    tokenizer = Tokenizer(to_bytes(byte_level_bpe(["plain text"], 300)))
    token_ids = tokenizer.encode_text("a🙂b")
    detokenizer = tokenizer.detokenizer()
    deltas = [detokenizer.push(token_id) for token_id in token_ids]
    assert deltas == ["a", "", "", "", "🙂", "b"]


def test_an_unfinished_character_is_shown_as_a_replacement_at_the_end_only() -> None:
    tokenizer = Tokenizer(to_bytes(byte_level_bpe(["plain text"], 300)))
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(token_id) for token_id in tokenizer.encode_text("🙂")[:2]] == ["", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("name", sorted(KINDS))
def test_special_tokens_are_not_shown(name: str) -> None:
    begin, end = (KINDS[name].token_to_id(token) for token in ("<s>", "</s>"))
    assert OURS[name].decode([begin, end, begin]) == ""


def test_added_tokens_that_are_not_special_are_shown() -> None:
    tokenizer = OURS["byte_level"]
    assert tokenizer.decode(tokenizer.encode_text("x→plain y")) == "x→plain y"


def test_work_per_token_does_not_grow_with_the_text() -> None:
    """Sixteen times the tokens must not take much more than sixteen times as long."""
    tokenizer = Tokenizer(to_bytes(byte_fallback(strip=True)))
    token_ids = tokenizer.encode_text("é b a" * 50)

    def seconds(count: int) -> float:
        detokenizer = tokenizer.detokenizer()
        start = time.process_time()
        for _ in range(count):
            for token_id in token_ids:
                detokenizer.push(token_id)
        return time.process_time() - start

    seconds(8)
    few = min(seconds(8) for _ in range(5))
    assert min(seconds(128) for _ in range(2)) < 16 * few * 3


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}],
        },
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
    ],
)
def test_a_decoder_without_incremental_form_is_refused_when_loaded(decoder: dict[str, object]) -> None:
    with pytest.raises(UnsupportedDecoder, match="not supported"):
        Tokenizer(to_bytes(metaspace(), decoder=decoder))
