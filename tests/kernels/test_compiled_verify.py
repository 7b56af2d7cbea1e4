"""`verify` in its compiled form: what a faulty kernel would get wrong, on few rows. Gate 4 has the rest."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from compiled_verify import SLOW_WAY, SMALL, compiled_draft, compiled_verify

from specmesh.kernels.compiled.forms import Tuning
from specmesh.kernels.inputs import DraftInput, VerifyInput
from specmesh.kernels.ops import verify
from specmesh.runtime.contract import ROW_TOTAL
from specmesh.runtime.rows import RowArrays
from specmesh.runtime.types import Rule, Sampling


def logits_of(rows: int, size: int) -> torch.Tensor:
    return torch.randn((rows, size), generator=torch.Generator().manual_seed(5)) * 2


def row(*entries: tuple[int, float]) -> RowArrays:
    weights = [round(share * ROW_TOTAL) for _, share in entries]
    weights[0] += ROW_TOTAL - sum(weights)
    return np.array([i for i, _ in entries], dtype=np.uint32), np.array(weights, dtype=np.uint32)


@pytest.mark.parametrize("tuning", [SMALL, SLOW_WAY], ids=["few", "whole-rows"])
def test_truncation_is_the_references_whichever_way_the_edge_is_found(tuning: Tuning) -> None:
    logits = logits_of(8, 70).round(decimals=0)  # many ties
    samplings = [Sampling(top_k=5), Sampling(top_p=0.6, top_k=9), Sampling(min_p=0.2, temperature=0.7), Sampling()]
    items = [
        VerifyInput(9, [3], [], sampling, rule, 11 + b, None)
        for b, (sampling, rule) in enumerate(zip(samplings, [Rule.COUPLED, Rule.BLOCK] * 2, strict=True))
    ]
    got = compiled_verify(logits, items, vocabulary_size=70, num_top=[0] * 4, tuning=tuning)
    wanted = verify(logits, items, vocabulary_size=70, num_top=[0] * 4)
    assert [(o.num_accepted, o.next_token) for o in got] == [(o.num_accepted, o.next_token) for o in wanted]
    assert [t.logprob for o in got for t in o.logprobs] == pytest.approx(
        [t.logprob for o in wanted for t in o.logprobs], abs=1e-5
    )


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_an_empty_residual_gives_a_token_of_the_law(rule: Rule) -> None:
    """T and D are the same two tokens, so what is left after a rejection is empty by rounding."""
    logits = torch.full((2, 40), -torch.inf)
    logits[:, 4], logits[:, 33] = 0.0, 1.0
    shares = torch.softmax(logits[0, [4, 33]], 0).tolist()
    items = [
        VerifyInput(3, [4], [row((4, shares[0] + 1e-6), (33, shares[1] - 1e-6))], Sampling(), rule, key, None)
        for key in range(6)
    ]
    got = compiled_verify(logits.repeat(6, 1), items, vocabulary_size=40)
    assert all(outcome.finite and outcome.next_token in (4, 33) for outcome in got)
    assert got == verify(logits.repeat(6, 1), items, vocabulary_size=40)


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_a_recovered_token_of_the_drafts_row_carries_its_probability_under_the_target(rule: Rule) -> None:
    """C3, C13: T = [.5, .3, .2], D = [.2, .5, .3]: every rejection emits 0, and ln .5 with it."""
    logits = torch.tensor([0.5, 0.3, 0.2]).log().repeat(16, 1)
    draft = row((0, 0.2), (1, 0.5), (2, 0.3))
    items = [VerifyInput(3, [1], [draft], Sampling(), rule, key, None) for key in range(8, 16)]
    outcomes = compiled_verify(logits, items, vocabulary_size=3, num_top=[0] * 8)
    recovered = [outcome for outcome in outcomes if outcome.num_accepted == 0]
    assert recovered
    assert all(outcome.next_token == 0 for outcome in recovered)
    assert [outcome.logprobs[0].logprob for outcome in recovered] == pytest.approx([np.log(0.5)] * len(recovered))


def test_the_likeliest_tokens_beside_come_along() -> None:
    logits = logits_of(2, 40)
    items = [VerifyInput(3, [1], [], Sampling(temperature=0.8), Rule.COUPLED, 5, None)]
    got = compiled_verify(logits, items, vocabulary_size=40, num_top=[3])[0]
    assert got == verify(logits, items, vocabulary_size=40, num_top=[3])[0]
    assert len(got.logprobs[0].top) == 3


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("rule", list(Rule))
def test_log_probabilities_come_with_the_outcomes(rule: Rule, top: int) -> None:
    """Also of recovered tokens, of strided logits, beside sessions that ask for none; plain decoding among them."""
    wide = logits_of(14, 80).to(torch.bfloat16)
    logits = wide[:, ::2]
    likely = logits.argmax(dim=1).tolist()
    rows = [row((1, 0.4), (7, 0.3), (20, 0.3))]
    items, start = [], 0
    for key, length in enumerate((1, 0, 1, 1, 1, 0, 1, 1)):
        bare = rule is Rule.COUPLED or key % 2 == 0
        drafted = [likely[start] if bare else 7][:length]
        own = [] if bare else rows[:length]
        items.append(VerifyInput(3, drafted, own, Sampling(temperature=0.6), rule, key))
        start += length + 1
    asked = [top, top, None, top, top, None, top, top]
    got = compiled_verify(logits, items, vocabulary_size=40, num_top=asked)
    wanted = verify(logits, items, vocabulary_size=40, num_top=asked)
    assert any(outcome.num_accepted and outcome.logprobs for outcome in wanted)
    for one, other in zip(got, wanted, strict=True):
        assert (one.num_accepted, one.next_token) == (other.num_accepted, other.next_token)
        assert [t.logprob for t in one.logprobs] == pytest.approx([t.logprob for t in other.logprobs], abs=1e-5)
        assert [[token for token, _ in t.top] for t in one.logprobs] == [
            [token for token, _ in t.top] for t in other.logprobs
        ]


@pytest.mark.parametrize(
    ("tuning", "size"), [(SMALL, 101), (Tuning(), 5000)], ids=["chunks-in-a-unit", "units-in-a-chunk"]
)
def test_adjusted_ids_are_among_the_others(tuning: Tuning, size: int) -> None:
    """Arg-max, law and truncation know them, also where there are several tiles of listed ids."""
    bias = tuple((token, 0.5 + token % 3) for token in range(0, min(size, 700), 3))
    samplings = [
        Sampling(temperature=0.0, logit_bias=bias),
        Sampling(logit_bias=bias),
        Sampling(frequency_penalty=0.4, logit_bias=bias, top_k=7),
        Sampling(repetition_penalty=1.4, top_p=0.3),
    ]
    items = [VerifyInput(9, [3], [], s, Rule.COUPLED, 11 + b, {4: 2, size - 1: 1}) for b, s in enumerate(samplings)]
    logits = logits_of(8, size)
    got = compiled_verify(logits, items, vocabulary_size=size, num_top=[0] * 4, tuning=tuning)
    wanted = verify(logits, items, vocabulary_size=size, num_top=[0] * 4)
    assert [(o.num_accepted, o.next_token) for o in got] == [(o.num_accepted, o.next_token) for o in wanted]
    assert [t.logprob for o in got for t in o.logprobs] == pytest.approx(
        [t.logprob for o in wanted for t in o.logprobs], abs=1e-5
    )


def test_a_chunks_sum_does_not_change_with_what_was_drafted() -> None:
    """Drafted ids are listed where there are penalties; the first row's law has none of them in it yet."""
    sampling = Sampling(temperature=0.8, frequency_penalty=0.3)
    logits, seen = logits_of(4, 4000), set()
    for drafted in ([], [17], [3999, 1, 2]):
        item = VerifyInput(9, drafted, [], sampling, Rule.COUPLED, 11, {})
        outcome = compiled_verify(
            logits[: len(drafted) + 1], [item], vocabulary_size=4000, num_top=[0], tuning=Tuning()
        )[0]
        seen.add((outcome.num_accepted, outcome.next_token, outcome.logprobs))
    assert len(seen) == 1


def test_a_row_behind_drafts_is_the_row_behind_the_same_tokens_of_the_output() -> None:
    """With penalties what was drafted counts as emitted: the same law to the bit, whatever else is listed."""
    sampling = Sampling(temperature=0.8, frequency_penalty=0.3, repetition_penalty=1.2, logit_bias=((40, 2.0),))
    logits, output, plain = logits_of(4, 4000), [40, 7], []
    for row in range(4):
        item = VerifyInput(9 + row, [], [], sampling, Rule.COUPLED, 11, Counter(output))
        plain.append(
            compiled_verify(logits[row : row + 1], [item], vocabulary_size=4000, num_top=[0], tuning=Tuning())[0]
        )
        output.append(plain[-1].next_token)
    for drafted in (output[2:5], [output[2], 3999], [output[2], output[3], 40]):
        item = VerifyInput(9, drafted, [], sampling, Rule.COUPLED, 11, Counter(output[:2]))
        got = compiled_verify(logits[: len(drafted) + 1], [item], vocabulary_size=4000, num_top=[0], tuning=Tuning())[0]
        assert got.num_accepted >= 1
        assert got.logprobs == tuple(one.logprobs[0] for one in plain[: got.num_accepted + 1])


def test_more_rows_than_a_launch_can_have_are_an_error() -> None:
    items = [VerifyInput(0, [], [], Sampling(), Rule.BLOCK, 1)] * 65_536
    with pytest.raises(ValueError, match="at most 65535 rows"):
        compiled_verify(torch.zeros(65_536, 2), items, vocabulary_size=2)


def test_more_ids_than_there_is_code_for_are_an_error() -> None:
    item = VerifyInput(0, [], [], Sampling(), Rule.BLOCK, 1)
    ask = DraftInput(0, 0, Sampling(), Rule.BLOCK, 1, None, 128, 1.0)
    logits = torch.zeros(1, 128 * SMALL.chunk + 1)
    with pytest.raises(ValueError, match="at most 4096 ids, got 4097"):
        compiled_verify(logits, [item], vocabulary_size=4097)
    with pytest.raises(ValueError, match="at most 4096 ids, got 4097"):
        compiled_draft(logits, [ask], 4097)


def test_the_ops_need_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from specmesh.kernels import ops; from specmesh.runtime.types import Rule, Sampling\n"
        "item = ops.VerifyInput(0, [], [], Sampling(temperature=0), Rule.BLOCK, 1)\n"
        "print(ops.verify(torch.tensor([[0., 2., 1.]]), [item], vocabulary_size=3)[0].next_token)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_compiled_on_a_gpu_it_decides_as_the_reference() -> None:
    logits = logits_of(5 * 200, 5000).to(torch.bfloat16)
    samplings = [Sampling(temperature=0.7), Sampling(top_p=0.9), Sampling(top_k=20), Sampling(temperature=0)]
    rules = list(Rule)
    items = [VerifyInput(7, [1, 2, 3, 4], [], samplings[b % 4], rules[b % 3], b, None) for b in range(200)]
    got = verify(logits.cuda(), items, vocabulary_size=5000)
    assert got == verify(logits, items, vocabulary_size=5000)
