"""Spans and contexts without any collector: who is traced, and how a span ends."""

import asyncio

import pytest

from specmesh.runtime.telemetry.entries import EntrySpans, Phase
from specmesh.runtime.telemetry.names import AHEAD_SPAN, ERROR_TYPE, TAKEN
from specmesh.runtime.telemetry.spans import Kind, Span, TraceContext, Tracer, parse_traceparent
from specmesh.runtime.types import Outcome

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (SAMPLED, True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True),
        (f"cc-{TRACE}-{PARENT}-01-what.the.future.brings", True),
    ],
)
def test_contexts_are_read_as_w3c_says(text: str, sampled: bool) -> None:
    context = parse_traceparent(text)
    assert context == TraceContext(int(TRACE, 16), int(PARENT, 16), sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        None,
        b"00",
        "rubbish",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_what_is_no_context_is_ignored(text: object) -> None:
    assert parse_traceparent(text) is None


def test_a_caller_decides_whether_its_request_is_traced() -> None:
    spans: list[Span] = []
    never, always = Tracer(spans.append, 0.0), Tracer(spans.append, 1.0)
    traced = never.entry("call", SAMPLED)
    assert traced is not None
    assert (traced.trace_id, traced.parent_id, traced.kind) == (int(TRACE, 16), int(PARENT, 16), Kind.SERVER)
    assert always.entry("call", f"00-{TRACE}-{PARENT}-00") is None
    assert never.entry("call", None) is None
    root = always.entry("call", "rubbish")
    assert root is not None
    assert root.parent_id == 0


def test_a_ratio_is_a_share_of_requests() -> None:
    tracer = Tracer(lambda span: None, 0.25)
    traced = sum(tracer.entry("call", None) is not None for _ in range(8000))
    assert 1750 < traced < 2250  # 6.5 standard deviations


def test_a_span_ends_once_and_says_what_went_wrong_but_not_in_words() -> None:
    spans: list[Span] = []
    root = Span(spans.append, "root", Kind.SERVER, trace_id=1)
    with pytest.raises(ValueError, match="the text of a request"), root.child("step"):
        raise ValueError("the text of a request")
    with pytest.raises(asyncio.CancelledError), root.child("step"):
        raise asyncio.CancelledError
    root.end()
    root.end()
    assert [(span.name, span.attributes.get(ERROR_TYPE), span.error) for span in spans] == [
        ("step", "ValueError", True),
        ("step", "cancelled", True),
        ("root", None, False),
    ]
    assert [span.parent_id for span in spans] == [root.span_id, root.span_id, 0]
    assert all(span.end_ns >= span.start_ns > 0 for span in spans)


def test_messages_on_a_stream_get_spans_that_end_however_the_answer_comes() -> None:
    spans: list[Span] = []
    entries = EntrySpans(Tracer(spans.append, 1.0))
    for session_id in range(4):
        entries.begin("verify", session_id, 7, SAMPLED)
    entries.begin("verify", 9, 7, "")
    entries.begin("verify", 9, 8, f"00-{TRACE}-{PARENT}-00")
    entries.end(0, 7, {"specmesh.batch_size": 2}, [Phase("queue", 10), Phase("forward", 10**15)])
    entries.end(1, 7, error="internal")
    entries.cancel(2)
    assert entries.any_open
    entries.close()
    assert not entries.any_open
    found = [(span.name, span.attributes.get(ERROR_TYPE)) for span in spans]
    assert found == [
        ("queue", None),
        ("forward", None),
        ("verify", None),
        ("verify", "internal"),
        ("verify", "cancelled"),
        ("verify", "unanswered"),
    ]
    queue, forward, verify = spans[:3]
    assert queue.parent_id == forward.parent_id == verify.span_id
    assert verify.parent_id == int(PARENT, 16)
    assert queue.start_ns == verify.start_ns
    assert forward.start_ns == queue.end_ns
    assert forward.end_ns == verify.end_ns, "a peer's figures never exceed the time they explain"


def test_an_entry_that_is_sent_again_cuts_off_the_first() -> None:
    spans: list[Span] = []
    entries = EntrySpans(Tracer(spans.append, 0.0))
    entries.begin("draft", 1, 7, SAMPLED)
    entries.begin("draft", 1, 7, SAMPLED)
    entries.end(1, 7)
    assert [span.attributes.get(ERROR_TYPE) for span in spans] == ["cancelled", None]


def ahead_of(spans: list[Span]) -> EntrySpans:
    """A step at 7 in flight; three entries sent ahead for ends of it."""
    entries = EntrySpans(Tracer(spans.append, 1.0))
    entries.begin("verify", 1, 7, SAMPLED)
    entries.begin("verify", 1, 9, SAMPLED, after=Outcome(7, 1, 50))
    entries.begin("verify", 1, 9, SAMPLED, after=Outcome(7, 1, 51))
    entries.begin("verify", 1, 8, SAMPLED, after=Outcome(7, 0, 50))
    return entries


def test_an_entry_sent_ahead_begins_its_phases_when_its_turn_comes() -> None:
    spans: list[Span] = []
    entries = ahead_of(spans)
    entries.end(1, 7, outcome=Outcome(7, 1, 51))
    assert [(span.name, span.attributes.get(TAKEN)) for span in spans] == [
        ("verify", None),
        (AHEAD_SPAN, None),
        ("verify", False),
        ("verify", False),
    ]
    assert not any(span.error for span in spans), "that another end came true is no fault"
    entries.end(1, 9, phases=[Phase("queue", 10)])
    ahead, queue, taken = spans[1], *spans[4:]
    assert taken.attributes[TAKEN] is True
    assert ahead.parent_id == queue.parent_id == taken.span_id
    assert ahead.start_ns == taken.start_ns
    assert queue.start_ns == ahead.end_ns, "what lay ready did not wait in the queue"
    assert not entries.any_open


def test_an_entry_for_an_end_that_is_known_already_is_decided_at_once() -> None:
    spans: list[Span] = []
    entries = EntrySpans(Tracer(spans.append, 1.0))
    entries.begin("verify", 1, 7, SAMPLED)
    entries.end(1, 7, outcome=Outcome(7, 1, 50))
    entries.begin("verify", 1, 9, SAMPLED, after=Outcome(7, 1, 51))
    entries.begin("verify", 1, 9, SAMPLED, after=Outcome(7, 1, 50))
    assert [span.attributes.get(TAKEN) for span in spans] == [None, False, None]
    entries.end(1, 9)
    assert spans[-1].attributes[TAKEN] is True


def test_entries_sent_ahead_end_with_their_session_their_stream_or_their_refusal() -> None:
    for end in (lambda entries: entries.cancel(1), EntrySpans.close):
        spans: list[Span] = []
        entries = ahead_of(spans)
        end(entries)
        assert [span.attributes.get(TAKEN) for span in spans] == [None, False, False, False]
        assert not entries.any_open
    spans = []
    entries = ahead_of(spans)
    entries.end(1, 8, error="invalid_value")
    assert [(span.attributes[ERROR_TYPE], span.error) for span in spans] == [("invalid_value", True)]
    entries.end(1, 7, outcome=Outcome(7, 0, 50))
    assert [span.attributes.get(TAKEN) for span in spans[1:]] == [None, False, False]


def test_without_a_tracer_messages_leave_nothing() -> None:
    entries = EntrySpans(None)
    entries.begin("verify", 1, 7, SAMPLED)
    assert not entries.any_open
