"""Neither texts nor token ids are told: not by logs, not by spans, not by errors, whatever goes wrong."""

import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from mesh_calls import generate, refused, request, router_at, wait_ready
from router_fakes import FakeDraft, FakeVerifier, Send, drafted, ended, step_failure
from traced_router import DRAFT_INFO, INFO, SAMPLED, Traced, traced_router

from specmesh.runtime.logs import configure_logging
from specmesh.v1 import draft_service_pb2 as draft_pb
from specmesh.v1 import verifier_service_pb2 as verifier_pb

Logged = Callable[[], str]
PROMPT = [7001, 7002, 7003]
DRAFTED, EMITTED, WRONG, STOP = 7104, 7205, 97306, 7407
SECRETS = (*PROMPT, DRAFTED, EMITTED, WRONG, STOP, "Sesame")
TOLD = re.compile(rf"(?<![\w.])({'|'.join(map(str, SECRETS))})(?![\w.])")
"""As a word: the digits of a span's id, of a port or of a time may be those of a token."""


async def drafts_them(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    if entry.block_length:
        await send(drafted(entry, 0, *[DRAFTED] * entry.block_length))
    await send(ended(entry, compute_ns=1000, batch_size=1))


async def lies(entry: draft_pb.DraftRequestEntry, send: Send) -> None:
    """More than it was asked for, and of a place that is not next."""
    await send(drafted(entry, 3, *[DRAFTED] * 30))


async def emits_them(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
    await send(
        verifier_pb.VerifyResponseEntry(
            session_id=entry.session_id,
            position=entry.position,
            token_ids=[EMITTED],
            drafted_count=len(entry.token_ids),
        )
    )


def failing(reason: str) -> Any:
    async def fails(entry: verifier_pb.VerifyRequestEntry, send: Send) -> None:
        await send(step_failure(entry, reason))

    return fails


BAD_REQUESTS: list[dict[str, Any]] = [
    {"prompt": "Open, Sesame"},
    {"prompt": [*PROMPT, WRONG]},
    {"prompt": PROMPT, "continuation_token_ids": [WRONG]},
    {"prompt": PROMPT, "continuation_token_ids": [EMITTED] * 50, "max_output_tokens": 4},
    {"prompt": PROMPT, "stop": {"token_ids": [WRONG]}},
    {"prompt": PROMPT, "stop": {"strings": ["Open, Sesame"]}},
    {"prompt": PROMPT, "stop": {"token_ids": [STOP]}, "continuation_token_ids": [STOP, EMITTED]},
    {"prompt": PROMPT * 2000},
    {"prompt": PROMPT, "workload": "Open, Sesame"},
    {"prompt": PROMPT, "sampling": {"logit_bias": {WRONG: 1.0}}},
]


@pytest.fixture
def logged() -> Iterator[Logged]:
    """All lines so far, of every level, as services write them."""
    root = logging.getLogger()
    handlers, level, stream = root.handlers[:], root.level, io.StringIO()
    configure_logging(json_lines=True, level="DEBUG", stream=stream)
    yield stream.getvalue
    root.handlers[:] = handlers
    root.setLevel(level)


def everything(traced: Traced) -> str:
    """Of all spans."""
    return " ".join(f"{span.name} {span.attributes}" for span in traced.spans)


def told(*texts: str) -> list[str]:
    return [word for text in texts for word in TOLD.findall(text)]


def test_a_token_is_recognised_where_it_is_told() -> None:
    assert told("stop token 7407", "[7001, 7002]", "{'text': 'Open, Sesame!'}") == ["7407", "7001", "7002", "Sesame"]
    assert told("0.0017407 s", "127.0.0.1:57407", "a7407b") == []


@pytest.mark.parametrize("fields", BAD_REQUESTS)
async def test_a_refusal_names_the_field_and_not_what_was_in_it(fields: dict[str, Any], logged: Logged) -> None:
    async with traced_router(FakeDraft(DRAFT_INFO), FakeVerifier(INFO)) as traced, router_at(traced.address) as stub:
        await wait_ready(stub, "good")
        error = await refused(generate(stub, request(**fields), metadata=SAMPLED))
        assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), error
        details = [str(value) for _, value in error.trailing_metadata() or ()]
        assert told(error.details() or "", *details, everything(traced), logged()) == []


@pytest.mark.parametrize("draft", [drafts_them, lies])
@pytest.mark.parametrize("verifier", [emits_them, *map(failing, ("INTERNAL", "NON_FINITE_LOGITS", "CONTEXT_MISMATCH"))])
async def test_steps_that_go_well_or_not_tell_no_token(draft: Any, verifier: Any, logged: Logged) -> None:
    async with (
        traced_router(FakeDraft(DRAFT_INFO, draft), FakeVerifier(INFO, verifier)) as traced,
        router_at(traced.address) as stub,
    ):
        await wait_ready(stub, "good")
        message = request(prompt=PROMPT, max_output_tokens=6, stop={"token_ids": [STOP]})
        if verifier is emits_them:
            assert set((await generate(stub, message, metadata=SAMPLED)).token_ids) == {EMITTED}
            said = ""
        else:
            said = (await refused(generate(stub, message, metadata=SAMPLED))).details() or ""
            assert said
        assert told(said, everything(traced), logged()) == []
