"""Text in and out of a mesh whose target is a transformers model: tokens, characters, stops, chat."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import torch
from mesh_calls import at_most, generate, refused, request, router_at, wait_ready
from mesh_models import write_model
from mesh_processes import Service, patient_router, pools_of
from tiny_tokenizers import byte_level_bpe
from transformers import LlamaForCausalLM

from specmesh.runtime.status import from_rpc_error
from specmesh.v1 import router_service_pb2 as pb
from specmesh.v1.router_service_pb2_grpc import RouterServiceStub

GREEDY = {"temperature": 0}
TOKENIZER = byte_level_bpe()


@dataclass(frozen=True)
class TextMesh:
    """A verifier with a tiny model, that model drafting for itself, prompt lookup, a router."""

    model: LlamaForCausalLM
    router: Service


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextMesh]:
    folder = tmp_path_factory.mktemp("texts")
    model = write_model(folder / "tiny")
    with ExitStack() as stack:
        verifier = stack.enter_context(
            Service("verifier", folder, model=folder / "tiny", dtype="float32", threads=1, kv_memory="32MiB")
        )
        drafter = {"source": folder / "tiny", "dtype": "float32"}
        drafts = {
            "self": stack.enter_context(Service("draft", folder, kind="hf", drafter=drafter)),
            "look": stack.enter_context(Service("draft", folder, kind="lookup")),
        }
        yield TextMesh(model, stack.enter_context(patient_router(folder, verifier, pools_of(drafts))))


@pytest.fixture
async def stub(texts: TextMesh) -> AsyncIterator[RouterServiceStub]:
    async with router_at(texts.router.address) as stub:
        await wait_ready(stub, "self", "look")
        yield stub


def own_greedy(model: LlamaForCausalLM, prompt: list[int], num_tokens: int) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


@pytest.mark.parametrize("arms", [[], ["self"], ["look"], None])
@pytest.mark.parametrize("length", [1, 4, 8])
async def test_greedy_ids_equal_transformers_generate(
    stub: RouterServiceStub, texts: TextMesh, arms: list[str] | None, length: int
) -> None:
    """Gate 2 through the running mesh, with a model that drafts for itself and with prompt lookup."""
    prompt = TOKENIZER.encode("The quick brown fox jumps").ids
    answer = await generate(
        stub, request("The quick brown fox jumps", 40, arms=arms, block_length=length, sampling=GREEDY)
    )
    expected = own_greedy(texts.model, prompt, 40)
    ended = expected[-1] == TOKENIZER.token_to_id("</s>")
    reason = pb.FINISH_REASON_STOP if ended else pb.FINISH_REASON_LENGTH
    assert answer.summary == (expected, reason, len(prompt), len(expected))
    assert answer.text == TOKENIZER.decode(expected)
    if arms == ["self"]:
        assert answer.finished is not None
        assert answer.finished.usage.accepted_token_count == answer.finished.usage.drafted_token_count > 0


async def test_characters_arrive_whole_whatever_the_blocks(stub: RouterServiceStub) -> None:
    """Sampled from a random model, most tokens are parts of characters; the text is that of all ids together."""
    message = request(
        "Naïve café", 60, arms=["self"], sampling={"seed": 5, "temperature": 1.3}, stop={"ignore_eos": True}
    )
    answer = await generate(stub, message)
    assert answer.text == TOKENIZER.decode(answer.token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("arms", [[], ["self"]])
async def test_a_stop_string_ends_the_text_wherever_it_falls(stub: RouterServiceStub, arms: list[str]) -> None:
    """C11 end to end: nothing of the stop string is sent, usage counts up to the token that completed it."""
    whole = await generate(stub, request("def add", 60, arms=[], sampling=GREEDY, stop={"ignore_eos": True}))
    for start in (3, len(whole.text) // 2):
        stop = whole.text[start : start + 5]
        first = whole.text.index(stop)
        message = request("def add", 60, arms=arms, sampling=GREEDY, stop={"ignore_eos": True, "strings": [stop]})
        answer = await generate(stub, message)
        assert answer.finished is not None
        assert answer.text == whole.text[:first]
        assert (answer.finished.finish_reason, answer.finished.stop_matched) == (pb.FINISH_REASON_STOP, stop)
        assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
        assert answer.finished.usage.output_token_count == len(answer.token_ids) < 60
        assert stop in TOKENIZER.decode(answer.token_ids)
        assert stop not in TOKENIZER.decode(answer.token_ids[:-1])


async def test_chat_uses_the_models_own_template(stub: RouterServiceStub) -> None:
    messages = [{"role": "system", "content": "add"}, {"role": "user", "content": "The fox"}]
    chat = await generate(stub, request((), 20, sampling=GREEDY, chat={"messages": messages}))
    prompt = TOKENIZER.encode("[system]add[user]The fox[assistant]", add_special_tokens=False).ids
    same = await generate(stub, request(prompt, 20, sampling=GREEDY))
    assert chat.summary == same.summary
    assert chat.text == same.text


async def test_a_long_text_is_refused_by_its_limit_within_a_second(stub: RouterServiceStub) -> None:
    """C21: 2 MB of text."""
    error = await refused(generate(stub, request("x" * 2_000_000), timeout=1.0))
    assert from_rpc_error(error).reason == "CONTEXT_TOO_LONG"
    assert "limits.max_text_bytes" in str(error.details())
    error = await refused(generate(stub, request("fox " * 300), timeout=1.0))
    assert "256 tokens" in str(error.details())
    assert (await generate(stub, request("fox", 5))).finished is not None


async def test_one_seed_one_text_with_a_real_model(stub: RouterServiceStub) -> None:
    """Gate 3 on a transformers model in float32: alone or in a batch, with any draft."""
    seeds = range(6)

    def messages(arms: list[str], length: int) -> list[pb.GenerateRequest]:
        return [
            request("The lazy dog", 30, arms=arms, block_length=length, sampling={"seed": seed, "temperature": 0.9})
            for seed in seeds
        ]

    plain = [(await generate(stub, message)).token_ids for message in messages([], 0)]
    for arms, length, together in ((["self"], 4, 6), (["self"], 7, 1), (["look"], 3, 6)):
        answers = await at_most(together, [generate(stub, message) for message in messages(arms, length)])
        assert [answer.token_ids for answer in answers] == plain
