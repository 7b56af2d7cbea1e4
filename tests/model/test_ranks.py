"""What the processes that share a model tell each other, and which models cannot be shared."""

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BloomConfig, LlamaConfig, StableLmConfig

from specmesh.model.errors import UnsupportedModel
from specmesh.model.place import MEETING, Meeting, Place, place_of
from specmesh.model.ranks import Kind, decode, encode
from specmesh.model.sharding import check_divides
from specmesh.model.spans import Span
from specmesh.verifier.followers import Watchdog

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    tokens = draw(IDS)
    start = draw(st.integers(0, 200))
    blocks = -(-(start + len(tokens)) // 16)
    table = draw(st.lists(st.integers(0, 2**18), min_size=blocks, max_size=blocks + 3))
    return Span(tokens, start, table, draw(st.integers(0, len(tokens))))


@given(st.lists(spans(), max_size=5), st.integers(0, 50))
def test_a_message_holds_what_is_needed_of_the_spans(sent: list[Span], behind: int) -> None:
    """Of a block table the blocks that the span reaches; what lies behind the message does not matter."""
    message = np.concatenate([encode(Kind.FORWARD, spans=sent), np.full(behind, 7, np.int32)])
    kind, arguments, received = decode(message)
    assert (kind, arguments) == (Kind.FORWARD, (0, 0))
    assert [(list(each.token_ids), each.start, each.first_row) for each in received] == [
        (list(each.token_ids), each.start, each.first_row) for each in sent
    ]
    for got, given_ in zip(received, sent, strict=True):
        assert list(got.block_table) == list(given_.block_table[: -(-given_.end // 16)])


@pytest.mark.parametrize("kind", [Kind.END, Kind.ALLOCATE, Kind.WARM_UP, Kind.COPY])
def test_a_message_without_spans_is_kind_and_arguments(kind: Kind) -> None:
    assert decode(encode(kind, 3, 2**30)) == (kind, (3, 2**30), [])


@pytest.mark.parametrize(
    ("environ", "size", "place"),
    [
        ({}, 2, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 2, Place(1, 2, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 4, Place(3, 4, 3)),
        ({"RANK": "1", "WORLD_SIZE": "2", MEETING: "127.0.0.1:81"}, 2, Place(1, 2, 1, Meeting("127.0.0.1", 81))),
        ({"RANK": "5", "WORLD_SIZE": "9"}, 1, None),
    ],
)
def test_the_place_of_a_process_is_what_torchrun_says(environ: dict[str, str], size: int, place: Place | None) -> None:
    assert place_of(environ, size) == place


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4"}, "2 ranks are configured, and this process is rank 0 of 4"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "must all be numbers"),
        ({"RANK": "0"}, "must all be numbers"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        place_of(environ, 2)


def test_models_that_cannot_be_divided_are_refused_with_the_numbers() -> None:
    llama = LlamaConfig(num_attention_heads=6, num_key_value_heads=3, hidden_size=48)
    check_divides(llama, 3)
    with pytest.raises(UnsupportedModel, match="its 3 key-value heads cannot be divided among 2 ranks"):
        check_divides(llama, 2)
    with pytest.raises(UnsupportedModel, match="no plan to divide a bloom model"):
        check_divides(BloomConfig(n_head=4, hidden_size=64), 2)
    assert StableLmConfig().base_model_tp_plan is None


def test_a_tick_that_does_not_end_is_noticed_and_one_that_ends_is_not() -> None:
    expired = threading.Event()
    watchdog = Watchdog(0.2, expired.set)
    started = time.monotonic()
    with watchdog:
        assert expired.wait(5)
    assert time.monotonic() - started < 1.0
    quick, fired = Watchdog(5.0, expired.set), os.getpid()
    expired.clear()
    for _ in range(100):
        with quick:
            fired += 1
    assert not expired.is_set()
    quick.close()
