"""The planner: expected tokens per step over expected step time, for every arm and length, each step anew.

Full information: arms are asked how they would have done on what was emitted, chosen or not, so none has to be played
to be rated (specification 5). Estimates are a session's own, shrunk to the arm's running estimate. Only times are
learned by playing, which takes one step of each arm at first and then a bounded share of the time.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence

from specmesh.router.policies.arm_record import ArmRecord
from specmesh.router.policies.demand import arms_in_demand
from specmesh.router.policies.interface import PLAIN, Arm, ArmView, Choice, StepObservation, StepSeconds, StepView
from specmesh.router.policies.planner import LEAST_SECONDS, Option, best_length, best_option
from specmesh.router.policies.score_costs import ScoreCosts
from specmesh.router.policies.session_text import SessionText
from specmesh.router.policies.settings import PolicySettings
from specmesh.router.policies.times import StepTimes

SHRINKAGE = 8.0
"""Tokens' worth of the arm's running estimate in a session's."""
FIRST_LENGTH = 4
FIRST_STEPS = 2
"""Steps by which a time is known: one alone may be an outlier."""
MAX_FIRST_TRIES = 4
SETTLED_STEPS = 4
"""Plain steps that may go by before it is asked again, where plain decoding is the best there is."""
SETTLED = Choice(None, 0, plain_steps=SETTLED_STEPS)
STALE_STEPS = 16
FADING_STEPS = 8
MAX_SAVED_STEPS = 20.0
"""Steps' worth of time that probing may save up, and that a probe is reckoned to cost at most."""
FIRST_SCORED = 4
"""Tokens after which a session's arms are first asked for scores."""
MAX_ARMS = 256
UNKNOWN_SECONDS = 1.0


class _Session:
    """What is held of one session; `promised` and `num_sessions` are of the step in flight."""

    def __init__(self, text: SessionText, position: int) -> None:
        self.text = text
        self.began = position
        self.num_steps = 0
        self.promised = 1.0
        self.num_sessions = 1
        self.was_warm = False
        self.chosen = False
        """Whether the step in flight was: not, when it is one of several plain ones."""
        self.expected: dict[Arm, tuple[object, list[float]]] = {}
        self.beside: tuple[Arm, ...] = ()
        """Arms asked for scores beside the step in flight."""
        self.asked_last = False
        """Whether some were beside the step before: one in two is free of them, by which their cost is known."""
        self.asked: dict[Arm, int] = {}
        """Position up to which each arm was given the context."""


class GoodputPolicy:
    """Policy `goodput`. Length 0 competes like any other."""

    wants_scores = True

    def __init__(self, *, seed: int, settings: PolicySettings) -> None:
        del seed  # nothing is drawn
        self._settings = settings
        self._longest = max(max(settings.candidate_lengths), 1)
        self._times = StepTimes()
        self._costs = ScoreCosts(settings.score_share)
        self._arms: OrderedDict[Arm | None, ArmRecord] = OrderedDict()
        self._sessions: dict[int, _Session] = {}
        self._scored: set[int] = set()
        self._num_steps = 0
        self._saved_seconds = 0.0

    def choose(self, view: StepView) -> Choice:
        """An arm whose time is not known, a probe when there is time for it, else the highest goodput."""
        session = self._session(view)
        arms = self._lengths(view, view.arms)
        tokens = {arm: self._tokens_per_step(session, arm)[:most] for arm, most in arms.items()}
        choice = self._untimed(arms) if arms else PLAIN
        if choice is None:
            choice = self._planned(list(self._options(tokens, view.num_sessions)))
        self._num_steps += 1
        session.chosen = True
        record = self._record(choice.arm)
        record.played_at, record.tries = self._num_steps, record.tries + 1
        session.num_sessions = view.num_sessions
        session.promised = tokens[choice.arm][choice.block_length - 1] if choice.arm else 1.0
        session.was_warm = choice.arm in session.asked
        if choice.arm:
            session.asked[choice.arm] = view.position
        return choice

    def also_score(self, view: StepView, choice: Choice) -> tuple[Arm, ...]:
        """Every arm now and then, in a bounded number of sessions: warm at first, so that it can score later."""
        session = self._session(view)
        asked_last, session.asked_last = session.asked_last, False
        if view.session_id not in self._scored or view.position == session.began or asked_last:
            return ()
        others = (each.arm for each in view.arms if each.arm != choice.arm)
        due = tuple(arm for arm in others if self._is_due(session, arm, view.position))
        session.asked |= dict.fromkeys(due, view.position)
        session.beside, session.asked_last = due, bool(due)
        self._costs.ask(due)
        return due

    def _is_due(self, session: _Session, arm: Arm, position: int) -> bool:
        """Whether it is long enough ago that the arm was asked: at first the text doubles from one time to the next."""
        if not self._costs.affordable(arm):
            return False
        if arm not in session.asked:
            return True
        asked = session.asked[arm]
        return position - asked >= min(self._settings.score_every, max(FIRST_SCORED, asked - session.began))

    def observe(self, observation: StepObservation) -> None:
        """Replay the scores; learn times, and what became of the block."""
        session = self._sessions.get(observation.session_id)
        if session is None:
            return
        for arm, scores in observation.scores.items():
            self._record(arm).evidence.add(session.text.score(arm, scores))
        session.text.emit(observation.position, observation.num_emitted, observation.target_logprobs)
        choice, seconds = observation.choice, observation.seconds
        self._learn_times(session, choice, seconds)
        session.num_steps += 1
        self._num_steps += not session.chosen
        session.chosen = False
        if choice.arm and not observation.ended:
            self._record(choice.arm).record(
                self._num_steps,
                accepted=observation.num_accepted,
                drafted=observation.num_drafted,
                emitted=observation.num_emitted,
                promised=session.promised,
            )
        self._save(seconds.total)

    def in_demand(self, view: StepView, absent: Sequence[ArmView], unloaded: Mapping[Arm, float]) -> Collection[Arm]:
        """By what is known of the session's text; an arm of which no time is known has to be tried to be known."""
        lengths = self._lengths(view, (*view.arms, *absent))
        rest = self._times.rest(view.num_sessions)
        if rest is None:
            return lengths.keys()
        session, there = self._session(view), {each.arm for each in view.arms}
        tokens = {arm: self._tokens_per_step(session, arm)[:most] for arm, most in lengths.items()}
        ready = {arm: expected for arm, expected in tokens.items() if arm in there}
        present = {option.choice.arm: option for option in self._options(ready, view.num_sessions)}
        unknown = {arm for arm in tokens if arm not in unloaded and arm not in present}
        return arms_in_demand(present, tokens, rest, unloaded) | unknown

    def forget(self, session_id: int) -> None:
        """Drop the session's text; what it taught of the arms stays."""
        self._sessions.pop(session_id, None)
        self._scored.discard(session_id)

    def _lengths(self, view: StepView, arms: Sequence[ArmView]) -> dict[Arm, int]:
        """The longest block that each may be asked for, of those that may be asked for one."""
        lengths = {each.arm: min(each.max_block_length, view.max_block_length, self._longest) for each in arms}
        return {arm: most for arm, most in sorted(lengths.items()) if most > 0}

    def _untimed(self, arms: dict[Arm, int]) -> Choice | None:
        """What has to be played once to know its time; None when nothing has."""
        for arm, most in arms.items():
            if self._times.num_samples(arm) < FIRST_STEPS and self._record(arm).tries < MAX_FIRST_TRIES:
                return Choice(arm, min(FIRST_LENGTH, most))
        untimed = self._times.num_plain < FIRST_STEPS and self._record(None).tries < MAX_FIRST_TRIES
        return PLAIN if untimed else None

    def _options(self, tokens: dict[Arm, list[float]], num_sessions: int) -> Iterator[Option]:
        """Plain decoding, and every arm whose time is known at its best length."""
        yield Option(PLAIN, 1.0, self._times.plain(num_sessions) or UNKNOWN_SECONDS)
        for arm, promised in tokens.items():
            times = self._times.drafted(arm, num_sessions)
            if times is not None:
                delivery = self._record(arm).delivery()
                expected = [max(each * delivery, 1.0) for each in promised] if delivery < 1 else promised
                length = best_length(expected, *times)
                seconds = max(times[0] + length * times[1], LEAST_SECONDS)
                yield Option(Choice(arm, length), expected[length - 1], seconds)

    def _planned(self, options: list[Option]) -> Choice:
        """The best option, or the best of the arm that was not played for the longest when that costs little enough."""
        best = best_option(options)
        waiting = [
            option for option in options if self._num_steps - self._record(option.choice.arm).played_at >= STALE_STEPS
        ]
        if waiting:
            probe = min(waiting, key=lambda option: self._record(option.choice.arm).played_at)
            loss = max(probe.seconds - probe.tokens / best.goodput, 0.0)
            # Nothing is too dear for ever: what made an arm look so may be over.
            if min(loss, MAX_SAVED_STEPS * best.seconds) <= self._saved_seconds:
                self._saved_seconds = max(self._saved_seconds - loss, 0.0)
                return probe.choice
        return best.choice if best.choice.arm else SETTLED

    def _learn_times(self, session: _Session, choice: Choice, seconds: StepSeconds) -> None:
        """Of the step, or of what it was slowed by."""
        usual = self._times.rest_of(choice, session.num_sessions) if session.beside else None
        if usual is not None and session.num_steps:
            self._costs.add(session.beside, seconds.total - seconds.draft, usual)
        first = session.num_steps == 0 or bool(session.beside)
        self._times.add(choice, seconds, session.num_sessions, first=first, warm=session.was_warm)
        session.beside = ()

    def _save(self, seconds: float) -> None:
        """Put a share of the time by for probing."""
        if 0 < seconds < float("inf"):
            self._costs.save(seconds)
            share = self._settings.probe_share * seconds
            self._saved_seconds = min(self._saved_seconds, MAX_SAVED_STEPS * seconds) + share

    def _tokens_per_step(self, session: _Session, arm: Arm) -> list[float]:
        """By block length; kept until there is news of the arm, or its old news has faded a little."""
        record, own = self._record(arm), session.text.evidence(arm)
        state = record.state, own.tokens if own else 0.0, self._num_steps // FADING_STEPS
        known = session.expected.get(arm)
        if known is None or known[0] != state:
            known = session.expected[arm] = state, record.tokens_per_step(self._num_steps, own, SHRINKAGE)
        return known[1]

    def _session(self, view: StepView) -> _Session:
        session = self._sessions.get(view.session_id)
        if session is None:
            text = SessionText(self._longest, rule=view.rule, greedy=view.greedy)
            session = self._sessions[view.session_id] = _Session(text, view.position)
            if len(self._scored) < self._settings.max_scored_sessions:
                self._scored.add(view.session_id)
        return session

    def _record(self, arm: Arm | None) -> ArmRecord:
        record = self._arms.get(arm)
        if record is None:
            record = self._arms[arm] = ArmRecord(self._longest)
            if len(self._arms) > MAX_ARMS:
                self._arms.popitem(last=False)
        return record
