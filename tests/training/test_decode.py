"""Writing: the prompts are followed to the letter, what comes after is the target's own, and turns follow answers."""

import torch
from model_builders import random_ids
from training_parts import END, tiny_target, write_rows

LENGTH = 40


def test_greedy_rows_are_the_targets_argmax_after_prompts_of_any_length() -> None:
    prompts = [[random_ids(length, length)] for length in (1, 5, 17)]
    written = write_rows(tiny_target(), prompts, length=LENGTH, temperature=0.0)
    plain = tiny_target()
    for row, (prompt,) in enumerate(prompts):
        assert written.tokens[row, : len(prompt)].tolist() == prompt
        best = plain(input_ids=written.tokens[row : row + 1], use_cache=False).logits[0].argmax(-1)
        sampled = written.by_target[row, 1:]
        assert sampled.sum() > 0
        assert torch.equal(best[:-1][sampled], written.tokens[row, 1:][sampled])


def test_the_next_prompt_follows_where_an_answer_ends() -> None:
    """Every token ends an answer here with good odds, so that both turns are seen."""
    turns = [[random_ids(6, 1), random_ids(7, 2)] for _ in range(64)]
    torch.manual_seed(0)
    written = write_rows(tiny_target(), turns, length=120, temperature=5.0)
    seen = 0
    for row in range(64):
        tokens, sampled = written.tokens[row].tolist(), written.by_target[row]
        ends = [at for at in range(6, 110) if sampled[at] and tokens[at] == END]
        if ends:
            seen += 1
            assert tokens[ends[0] + 1 : ends[0] + 8] == turns[row][1]
            assert not sampled[ends[0] + 1 : ends[0] + 8].any()
    assert seen > 10


def test_a_row_that_ran_out_of_prompts_is_invalid() -> None:
    torch.manual_seed(1)
    written = write_rows(tiny_target(), [[random_ids(4, 3)] for _ in range(64)], length=120, temperature=5.0)
    ended = 0
    for row in range(64):
        ends = ((written.tokens[row] == END) & written.by_target[row]).nonzero()[:, 0].tolist()
        if ends:
            ended += 1
            assert written.valid[row, : ends[0] + 1].all()
            assert not written.valid[row, ends[0] + 1 :].any()
    assert ended > 10


def test_sampling_follows_the_targets_law() -> None:
    """20,000 rows of one token: total variation from the law is what sampling noise allows."""
    rows, prompt = 20_000, random_ids(3, 9)
    torch.manual_seed(2)
    written = write_rows(tiny_target(), [[prompt]] * rows, length=4, temperature=1.0)
    law = tiny_target()(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1].softmax(-1)
    seen = torch.bincount(written.tokens[:, 3], minlength=len(law)) / rows
    noise = (law * (1 - law) / rows).sqrt().sum() / 2
    assert float((seen - law).abs().sum() / 2) < 1.2 * float(noise)
