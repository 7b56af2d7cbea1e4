"""What blocks sent ahead (`after`) and runs save: the engine's own core, with a network between it and its router.

Time is virtual, so the figures are the same on every machine: a tick takes `--step-ms`, a message `--network-ms` one
way, a block `--draft-ms`. Every drafted token is accepted; a block for that outcome is sent ahead in a share `hits` of
the steps. `over_bare`: time per tick over the bare tick. Prints JSON.

    python benchmarks/sent_ahead.py
"""

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Sequence

import numpy as np

from specmesh.kernels.inputs import VerifyOutcome
from specmesh.runtime.types import Outcome, Rule, Sampling, SessionSpec, StepResult
from specmesh.verifier.admission import Opening
from specmesh.verifier.backend import Verified, Work
from specmesh.verifier.batcher import TickLimits
from specmesh.verifier.core import Core
from specmesh.verifier.entries import EntryLimits
from specmesh.verifier.gather import Gather
from specmesh.verifier.outbox import Outbox
from specmesh.verifier.paged import PagedBackend
from specmesh.verifier.session import NEVER_NS, Answer, Entry, Session
from specmesh.verifier.target import TableTarget

MS = 1_000_000
TOKENS = 1500
NEXT = 3
LIMIT = TOKENS + 64


class TimedBackend(PagedBackend):
    """Accepts everything; a tick takes `step_ns` of the virtual time `now_ns`."""

    now_ns = MS
    step_ns = 0

    def _verify(self, batch: Sequence[Work]) -> Verified:
        self.now_ns += self.step_ns
        blocks = [work.verify for work in batch if work.verify is not None]
        return Verified([VerifyOutcome(len(block.draft_token_ids), NEXT, finite=True) for block in blocks])


class Router:
    """Sends each session's blocks, and, in a share `hits` of the steps, the next one ahead; or runs of plain tokens."""

    peer = "router"

    def __init__(
        self, options: argparse.Namespace, sessions: int, hits: float, run: int, gather: Gather | None = None
    ) -> None:
        self._delay_ns, self._draft_ns = int(options.network_ms * MS), int(options.draft_ms * MS)
        self._tokens = () if run else (NEXT,) * options.length
        self._hits, self._run = hits, run
        self._random = random.Random(1)
        self._mail: list[tuple[int, int, Session, Entry]] = []
        self._order = itertools.count()
        self._ahead: set[tuple[int, int]] = set()
        target = TableTarget(np.zeros((8, 8, 8), np.float32), max_context_tokens=LIMIT)
        self.backend = TimedBackend(target, num_blocks=sessions * (LIMIT // 16 + 2), max_context_tokens=LIMIT)
        self.core = Core(
            self.backend, limits=TickLimits(4096, 4096), entry_limits=EntryLimits(), max_waiting_sessions=8,
            clock=lambda: self.backend.now_ns, gather=gather,
        )  # fmt: skip
        for index in range(sessions):
            self.core.open(Opening(spec_of(index), lambda error: None, NEVER_NS))
        self.backend.step_ns = int(options.step_ms * MS)

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Not called: there is no event loop here; `measure` reads the outbox."""

    def measure(self, apart_ns: int = 0) -> dict[str, float]:
        """All sessions to their end; every other one begins `apart_ns` later."""
        began_ns, began_ticks = self.backend.now_ns, self.core.counters["ticks"]
        tokens = 0
        for index, session in enumerate(self.core.sessions.values()):
            self._send(session, session.position, self._delay_ns + index % 2 * apart_ns)
        while self.core.sessions:
            self._let_time_pass()
            self.core.tick()
            outbox, self.core.outbox = self.core.outbox, Outbox()
            for answer in (answer for _, answers in outbox.answers() for answer in answers):
                assert isinstance(answer, StepResult), answer
                tokens += len(answer.token_ids)
                self._learn(answer)
        ticks, passed_ns = self.core.counters["ticks"] - began_ticks, self.backend.now_ns - began_ns
        return {
            "tokens_per_second": round(tokens * 1e9 / passed_ns),
            "over_bare": round(passed_ns / ticks / self.backend.step_ns, 3),
            "taken_ahead": self.core.counters["conditional_taken"],
        }

    def _let_time_pass(self) -> None:
        """Until the engine has work and waits for nobody."""
        while True:
            while self._mail and self._mail[0][0] <= self.backend.now_ns:
                _, _, session, entry = heapq.heappop(self._mail)
                if self.core.sessions.get(session.key) is session:
                    self.core.submit(session, entry)
            until_ns = self.core.gather_until_ns()
            if self.core.has_work and until_ns is None:
                return
            next_ns = self._mail[0][0] if self._mail else NEVER_NS
            self.backend.now_ns = min(next_ns, until_ns or NEVER_NS)

    def _learn(self, answer: StepResult) -> None:
        """The answer reaches the router a message later; what it sends then takes another."""
        session = self.core.sessions.get((self.peer, answer.session_id))
        if session is None or (self._run and session.entry is not None):
            return
        if (answer.session_id, answer.position) in self._ahead:
            self._send_ahead(session, session.position, 2 * self._delay_ns)
        else:
            self._send(session, session.position, 2 * self._delay_ns)

    def _send(self, session: Session, position: int, in_ns: int) -> None:
        arrival_ns = self.backend.now_ns + in_ns + (self._draft_ns if self._tokens else 0)
        entry = Entry(self, position, self._tokens, (), None, arrival_ns, run_count=self._run)
        heapq.heappush(self._mail, (arrival_ns, next(self._order), session, entry))
        self._send_ahead(session, position, in_ns + self._draft_ns)

    def _send_ahead(self, session: Session, position: int, in_ns: int) -> None:
        """For the likeliest end of the step that starts at `position`."""
        if self._random.random() >= self._hits:
            return
        arrival_ns = self.backend.now_ns + in_ns + self._draft_ns
        after = Outcome(position, len(self._tokens), NEXT)
        entry = Entry(self, position + len(self._tokens) + 1, self._tokens, (), None, arrival_ns, after=after)
        self._ahead.add((session.spec.session_id, position))
        heapq.heappush(self._mail, (arrival_ns, next(self._order), session, entry))


def spec_of(index: int) -> SessionSpec:
    """A session that goes on for `TOKENS` tokens."""
    return SessionSpec(
        session_id=index, peer=Router.peer, context=(index % 7,), prompt_length=1, sampling=Sampling(temperature=0.0),
        rule=Rule.TOKEN, verify_key=index, draft_key=index, max_output_tokens=TOKENS, lease_ms=600_000,
    )  # fmt: skip


def main() -> None:
    """Blocks with none, some and all sent ahead, then plain tokens one at a time and in runs."""
    options = _options()
    forms = [{"hits": hits, "run": 0} for hits in (0.0, 0.7, 1.0)] + [{"hits": 0.0, "run": run} for run in (1, 8, 64)]
    results = [
        {"sessions": sessions, **form, **Router(options, sessions, form["hits"], int(form["run"])).measure()}
        for sessions in options.sessions
        for form in forms
    ]
    print(json.dumps({**vars(options), "results": results}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--network-ms", type=float, default=1.0, help="one way")
    parser.add_argument("--draft-ms", type=float, default=2.0)
    parser.add_argument("--length", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
