"""What a verifier tells of blocks that were sent ahead."""

import numpy as np
from verifier_parts import COUNTING, make_spec
from verifier_server import Peer, serving, until

from specmesh.runtime import wire
from specmesh.runtime.telemetry import names
from specmesh.runtime.telemetry.spans import Span, Tracer
from specmesh.runtime.types import Block, Outcome, StepResult
from specmesh.verifier.target import TableTarget

STEP, TAKEN, NOT_TAKEN = (f"00-0af7651916cd43dd8448eb211c80319c-{number:016x}-01" for number in (1, 2, 3))


async def test_a_block_sent_ahead_has_a_span_whether_it_is_taken_or_not() -> None:
    """The target counts: after 3 it says 4, so the first step keeps 4 and ends in 5."""
    spans: list[Span] = []
    target = TableTarget(np.asarray(COUNTING))
    async with serving(target, tracer=Tracer(spans.append, 0.0)) as verifier, Peer(verifier.address) as peer:
        await peer.open(make_spec([3]))
        await peer.send(
            wire.block_to_entry(1, Block(1, (4,)), remaining_ms=0, traceparent=STEP),
            wire.block_to_entry(1, Block(3, (6, 9), after=Outcome(1, 1, 5)), remaining_ms=0, traceparent=TAKEN),
            wire.block_to_entry(1, Block(2, (5,), after=Outcome(1, 0, 4)), remaining_ms=0, traceparent=NOT_TAKEN),
        )
        first, second = await peer.receive(1), await peer.receive(1)
        assert isinstance(first, StepResult)
        assert isinstance(second, StepResult)
        assert (first.token_ids, second.token_ids) == ((4, 5), (6, 7))
        await peer.close(1)
        await until(lambda: sum(span.name == names.VERIFY_SPAN for span in spans) == 3)
    step, taken, dropped = (
        next(span for span in spans if (span.name, span.parent_id) == (names.VERIFY_SPAN, parent))
        for parent in (1, 2, 3)
    )
    assert (step.attributes.get(names.TAKEN), taken.attributes[names.TAKEN]) == (None, True)
    assert dropped.attributes == {names.TAKEN: False}
    assert not dropped.error
    assert taken.attributes[names.NUM_ACCEPTED] == 1
    inside = {span.name: span for span in spans if span.parent_id == taken.span_id}
    assert set(inside) == {names.AHEAD_SPAN, names.QUEUE_SPAN, names.FORWARD_SPAN, names.KERNEL_SPAN}
    assert inside[names.AHEAD_SPAN].start_ns == taken.start_ns
    assert inside[names.QUEUE_SPAN].start_ns == inside[names.AHEAD_SPAN].end_ns
    known = {span.span_id for span in spans}
    assert {span.parent_id for span in spans} - known == {1, 2, 3}, "what was sent with the three blocks"
    # What was ahead of its turn overlaps with the step before: nothing of its own work begins until that is over.
    assert taken.start_ns < step.end_ns <= inside[names.QUEUE_SPAN].start_ns
