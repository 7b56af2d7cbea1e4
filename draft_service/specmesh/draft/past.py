"""A law that learns from the session: mixed with what followed earlier in the same context.

P_0 is a draft's own law; with c(w) and n the counts of what followed the context's last m tokens earlier on,
P_m(w) = (c(w) + a_m P_{m-1}(w)) / (n + a_m) for m = 1, 2, ... as far as they occurred before (hierarchical Dirichlet
smoothing: MacKay and Peto, "A hierarchical Dirichlet language model", 1995). So it says what prompt lookup says where
the text repeats itself, and what the draft says elsewhere. The counts are soft state, rebuilt from the tokens when they
are gone, and the row is whatever this law makes of them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from specmesh.draft.drafter import DrafterInfo
from specmesh.draft.lookup import BYTES_PER_TOKEN, LookupSettings, MatchIndex
from specmesh.draft.sparse_law import Law

USUAL_WEIGHTS = (4.0, 0.1, *[0.3] * 6)
"""a_1, a_2, ... of a table: fitted to what a small language model writes (`docs/distilling.md`)."""
MAX_OCCURRENCES = 32
"""Of the context's last token, the latest first; more find nothing better."""


class PastMixture:
    """Mixes a law with a context's past; `weights` are a_1, a_2, ... as far as matches are told apart."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self.settings = LookupSettings(min_match=1, max_match=len(weights), max_candidates=MAX_OCCURRENCES)

    def law(self, own: Law, index: MatchIndex) -> Law:
        """Probability by id of what follows the context in `index`; `own` sums to 1, or is empty: nothing is known."""
        matches = index.matches()
        if not matches:
            return own
        counts = [0] * (len(self._weights) + 1)
        for length, _ in matches:
            counts[length] += 1
        shares, left = self._shares(counts)
        law = {token: prob * left for token, prob in own.items()}
        for length, token in matches:
            law[token] = law.get(token, 0.0) + shares[length]
        return law

    def _shares(self, counts: list[int]) -> tuple[list[float], float]:
        """(share of one occurrence by the length of its match, share left to the own law). `counts` by length."""
        shares, left, longer = [0.0] * len(counts), 1.0, 0
        for length in range(len(counts) - 1, 0, -1):
            longer += counts[length]  # a longer match is one of this length as well
            if longer:
                total = longer + self._weights[length - 1]
                for shorter in range(length, len(counts)):
                    shares[shorter] += left / total
                left *= self._weights[length - 1] / total
        return shares, left


def with_past(info: DrafterInfo, weights: Sequence[float]) -> DrafterInfo:
    """What a draft says of itself when it is mixed with the past: it is another arm than without."""
    digest = hashlib.sha256(f"{info.model_digest} context {tuple(weights)!r}".encode()).hexdigest()
    return replace(info, model_digest=digest, bytes_per_token=BYTES_PER_TOKEN)
