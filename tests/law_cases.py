"""The configurations of the law gate, in one table: every pair of levels of any two columns is met (a test counts).

Columns: rule, temperature, filter (`FILTERS`), block length, vocabulary, drafting (`DRAFTINGS`).
"""

from dataclasses import dataclass

from law_harness import Drafting, Simulation, Tables, Verify, random_tables

from specmesh.kernels.reference.verify import verify_batch
from specmesh.runtime.types import Rule, Sampling

RULES = (Rule.BLOCK, Rule.TOKEN, Rule.COUPLED)
TEMPERATURES = (0.5, 0.95, 1.0, 1.7)
FILTERS: dict[str, dict[str, float]] = {
    "none": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.83},
    "min_p": {"min_p": 0.17},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.15},
    "all": {"top_k": 4, "top_p": 0.91, "min_p": 0.06, "frequency_penalty": -0.2},
}
LENGTHS = tuple(range(9))
VOCABULARIES = (3, 4, 5, 6, 7, 8)
DRAFTINGS: dict[str, dict[str, int | bool]] = {
    "rows": {},
    "cuts": {"cuts": True},
    "narrow": {"max_row": 2, "cuts": True},
    "one_hot": {"one_hot": True},
    "stops": {"stop_after": 0},
}

LAW_TABLE: tuple[tuple[Rule, float, str, int, int, str], ...] = (
    (Rule.BLOCK, 1.7, "top_p", 0, 4, "stops"),
    (Rule.BLOCK, 0.95, "min_p", 0, 5, "rows"),
    (Rule.BLOCK, 0.5, "penalties", 0, 7, "one_hot"),
    (Rule.BLOCK, 1.0, "top_p", 1, 7, "stops"),
    (Rule.BLOCK, 1.7, "min_p", 1, 8, "cuts"),
    (Rule.BLOCK, 0.5, "top_k", 2, 5, "one_hot"),
    (Rule.BLOCK, 0.95, "all", 2, 8, "rows"),
    (Rule.BLOCK, 0.95, "none", 3, 6, "one_hot"),
    (Rule.BLOCK, 0.95, "all", 4, 6, "stops"),
    (Rule.BLOCK, 0.95, "penalties", 4, 8, "one_hot"),
    (Rule.BLOCK, 1.0, "min_p", 5, 3, "one_hot"),
    (Rule.BLOCK, 0.95, "top_p", 5, 4, "narrow"),
    (Rule.BLOCK, 0.95, "top_p", 6, 5, "stops"),
    (Rule.BLOCK, 1.0, "top_k", 6, 6, "rows"),
    (Rule.BLOCK, 1.0, "all", 7, 4, "stops"),
    (Rule.BLOCK, 0.95, "none", 8, 4, "narrow"),
    (Rule.BLOCK, 1.0, "all", 8, 8, "one_hot"),
    (Rule.TOKEN, 1.7, "all", 0, 6, "narrow"),
    (Rule.TOKEN, 0.95, "penalties", 1, 4, "rows"),
    (Rule.TOKEN, 0.5, "min_p", 2, 3, "stops"),
    (Rule.TOKEN, 1.7, "top_p", 2, 4, "one_hot"),
    (Rule.TOKEN, 0.5, "min_p", 3, 5, "narrow"),
    (Rule.TOKEN, 1.0, "penalties", 3, 7, "cuts"),
    (Rule.TOKEN, 0.5, "none", 4, 3, "stops"),
    (Rule.TOKEN, 1.0, "top_p", 4, 4, "rows"),
    (Rule.TOKEN, 1.0, "min_p", 4, 5, "cuts"),
    (Rule.TOKEN, 1.0, "none", 5, 5, "narrow"),
    (Rule.TOKEN, 0.95, "all", 5, 7, "cuts"),
    (Rule.TOKEN, 0.5, "top_k", 5, 8, "rows"),
    (Rule.TOKEN, 1.7, "penalties", 6, 3, "narrow"),
    (Rule.TOKEN, 1.0, "top_k", 7, 3, "narrow"),
    (Rule.TOKEN, 0.5, "top_p", 7, 6, "cuts"),
    (Rule.TOKEN, 0.95, "min_p", 7, 7, "rows"),
    (Rule.TOKEN, 1.0, "penalties", 8, 5, "cuts"),
    (Rule.TOKEN, 1.7, "top_k", 8, 7, "one_hot"),
    (Rule.COUPLED, 0.95, "top_k", 0, 3, "cuts"),
    (Rule.COUPLED, 1.0, "none", 0, 8, "stops"),
    (Rule.COUPLED, 1.7, "none", 1, 3, "narrow"),
    (Rule.COUPLED, 0.5, "all", 1, 5, "one_hot"),
    (Rule.COUPLED, 1.7, "top_k", 1, 6, "narrow"),
    (Rule.COUPLED, 0.5, "penalties", 2, 6, "narrow"),
    (Rule.COUPLED, 1.0, "none", 2, 7, "cuts"),
    (Rule.COUPLED, 0.95, "all", 3, 3, "rows"),
    (Rule.COUPLED, 1.7, "top_k", 3, 4, "stops"),
    (Rule.COUPLED, 1.0, "top_p", 3, 8, "narrow"),
    (Rule.COUPLED, 1.7, "top_k", 4, 7, "narrow"),
    (Rule.COUPLED, 1.7, "penalties", 5, 6, "stops"),
    (Rule.COUPLED, 0.5, "min_p", 6, 4, "cuts"),
    (Rule.COUPLED, 0.5, "all", 6, 7, "one_hot"),
    (Rule.COUPLED, 1.0, "none", 6, 8, "one_hot"),
    (Rule.COUPLED, 1.7, "none", 7, 5, "rows"),
    (Rule.COUPLED, 1.7, "penalties", 7, 8, "one_hot"),
    (Rule.COUPLED, 0.5, "top_p", 8, 3, "rows"),
    (Rule.COUPLED, 1.7, "min_p", 8, 6, "stops"),
)


@dataclass(frozen=True)
class LawCase:
    """One configuration; `seed` fixes tables, keys, arms and cuts."""

    rule: Rule
    temperature: float
    filter: str
    length: int
    vocabulary_size: int
    drafting: str
    seed: int

    @property
    def name(self) -> str:
        return (
            f"{self.rule.value}-{self.temperature}-{self.filter}-{self.length}-{self.vocabulary_size}-{self.drafting}"
        )

    @property
    def sampling(self) -> Sampling:
        bias = ((1, 0.4),) if self.filter == "all" else ()
        return Sampling(temperature=self.temperature, logit_bias=bias, **FILTERS[self.filter])  # type: ignore[arg-type]

    @property
    def tables(self) -> Tables:
        return random_tables(self.vocabulary_size, self.seed)

    def simulation(self, num_sequences: int, num_tokens: int, verify: Verify = verify_batch) -> Simulation:
        drafting = Drafting(self.length, **DRAFTINGS[self.drafting])  # type: ignore[arg-type]
        return Simulation(
            self.tables, self.sampling, self.rule, drafting, num_sequences, num_tokens, self.seed, verify=verify
        )


def law_cases(first_seed: int) -> list[LawCase]:
    """The table with distinct seeds."""
    return [LawCase(*row, seed=first_seed + index) for index, row in enumerate(LAW_TABLE)]


def first_tokens_cases(first_seed: int) -> list[LawCase]:
    """Fewer configurations with small vocabularies, for the joint law of the first tokens at many samples."""
    rows = (
        (Rule.BLOCK, 1.0, "none", 3, 3, "rows"),
        (Rule.BLOCK, 0.5, "none", 8, 3, "rows"),
        (Rule.BLOCK, 1.7, "penalties", 4, 3, "cuts"),
        (Rule.BLOCK, 1.7, "top_p", 5, 4, "narrow"),
        (Rule.BLOCK, 0.95, "none", 2, 4, "stops"),
        (Rule.TOKEN, 1.0, "none", 3, 3, "rows"),
        (Rule.TOKEN, 1.7, "all", 4, 4, "cuts"),
        (Rule.TOKEN, 1.7, "min_p", 6, 4, "stops"),
        (Rule.COUPLED, 1.0, "none", 4, 4, "rows"),
        (Rule.COUPLED, 1.7, "penalties", 3, 3, "cuts"),
        (Rule.COUPLED, 0.5, "top_k", 2, 4, "one_hot"),
    )
    return [LawCase(*row, seed=first_seed + index) for index, row in enumerate(rows)]
