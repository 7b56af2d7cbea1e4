"""Gate 3, its arithmetic half: under COUPLED the same seed gives the same ids whatever the drafts do."""

from collections.abc import Callable

import pytest
import torch
from law_harness import Delivery, Drafting, Simulation, Tables, all_arrives, as_sampled, random_tables
from torch import Tensor

from specmesh.runtime.types import Rule, Sampling

SEEDS = 300
TOKENS = 16


def lost_by_value(delivery: Delivery) -> Tensor:
    """Blocks vanish for what is in them."""
    return torch.where(delivery.token_ids.sum(dim=1) % 2 == 0, 0, delivery.lengths)


def nothing_arrives(delivery: Delivery) -> Tensor:
    return torch.zeros_like(delivery.lengths)


def lying(token_ids: Tensor) -> Tensor:
    """C38: never what the draft sampled."""
    return (token_ids + 1) % VOCABULARY


def partly_lying(token_ids: Tensor) -> Tensor:
    """Truth and lies in turns."""
    return torch.where(torch.arange(len(token_ids)) % 2 == 0, token_ids, 0)


VOCABULARY = 8
SCHEDULES: dict[str, tuple[Drafting, Callable[[Delivery], Tensor], Callable[[Tensor], Tensor]]] = {
    "length-1": (Drafting(1), all_arrives, as_sampled),
    "length-4": (Drafting(4), all_arrives, as_sampled),
    "length-8": (Drafting(8), all_arrives, as_sampled),
    "random-lengths": (Drafting(8, cuts=True), all_arrives, as_sampled),
    "prompt-lookup": (Drafting(5, one_hot=True), all_arrives, as_sampled),
    "stops-early": (Drafting(5, stop_after=1), all_arrives, as_sampled),
    "lost-by-value": (Drafting(4), lost_by_value, as_sampled),
    "all-lost": (Drafting(3), nothing_arrives, as_sampled),
    "lying": (Drafting(4), all_arrives, lying),
    "partly-lying": (Drafting(6, cuts=True), lost_by_value, partly_lying),
}


def ids(
    tables: Tables,
    sampling: Sampling,
    drafting: Drafting,
    deliver: Callable[[Delivery], Tensor] = all_arrives,
    send: Callable[[Tensor], Tensor] = as_sampled,
    *,
    rule: Rule = Rule.COUPLED,
) -> Tensor:
    return Simulation(tables, sampling, rule, drafting, SEEDS, TOKENS, seed=9, deliver=deliver, send=send).run()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7, top_p=0.9, min_p=0.02),
        Sampling(temperature=1.7, repetition_penalty=1.2, frequency_penalty=0.1, top_k=4),
        Sampling(temperature=1.3, logit_bias=((3, 0.5),)),
    ],
    ids=["plain", "truncated", "penalised", "biased"],
)
def test_the_same_seed_gives_the_same_ids_under_every_schedule(sampling: Sampling) -> None:
    tables = random_tables(VOCABULARY, 31)
    plain = ids(tables, sampling, Drafting(0))
    assert len(plain.unique(dim=0)) > SEEDS // 2, "seeds differ"
    for name, schedule in SCHEDULES.items():
        assert ids(tables, sampling, *schedule).equal(plain), name


def test_other_rules_make_no_such_promise() -> None:
    """The comparison can fail."""
    tables = random_tables(VOCABULARY, 31)
    assert not ids(tables, Sampling(), Drafting(0), rule=Rule.BLOCK).equal(
        ids(tables, Sampling(), Drafting(4), rule=Rule.BLOCK)
    )


@pytest.mark.parametrize("rule", list(Rule))
def test_temperature_0_equals_the_plain_path_under_every_rule_and_schedule(rule: Rule) -> None:
    """Gate 2, its arithmetic half."""
    tables, greedy = random_tables(VOCABULARY, 32), Sampling(temperature=0)
    plain = ids(tables, greedy, Drafting(0), rule=rule)
    for name, schedule in SCHEDULES.items():
        assert ids(tables, greedy, *schedule, rule=rule).equal(plain), name
