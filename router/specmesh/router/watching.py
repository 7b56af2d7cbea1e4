"""What steps and requests tell whoever watches them; by default nobody does, and it costs nothing."""

from contextlib import AbstractContextManager
from typing import Protocol, Self

from specmesh.router.committed import CommittedStep
from specmesh.router.policies.interface import Choice
from specmesh.router.session import Session


class WatchedStep(Protocol):
    """One step: a `with` around it, and one around each wait for another service."""

    def __enter__(self) -> Self:
        """It begins."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """It is over, well or not."""

    def draft(self, choice: Choice) -> AbstractContextManager[object]:
        """Around the wait for the block of what was chosen."""

    def verify(self, *, asked: bool) -> AbstractContextManager[object]:
        """Around the wait for the verifier; not `asked` within a run, whose first step asked for this one too."""

    def done(self, step: CommittedStep, /) -> None:
        """It is committed."""


class WatchedRequest(Protocol):
    """One request, from its arrival: a `with` around it."""

    def __enter__(self) -> Self:
        """It has arrived."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """It is over, well or not."""

    def serve(self, session: Session, caller: str, model: str) -> None:
        """It has a session from now on."""

    def event(self) -> None:
        """The client gets something."""


class Watch(Protocol):
    """Watches the requests of a router and their steps."""

    def request(self, operation: str) -> WatchedRequest:
        """A request has arrived: `chat` or `text_completion`."""

    def step(self, session: Session) -> WatchedStep:
        """A session takes a step."""


class Unwatched:
    """A request or a step that nobody watches; one object serves all of them."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        return

    def serve(self, session: Session, caller: str, model: str) -> None:
        """Nothing."""

    def event(self) -> None:
        """Nothing."""

    def draft(self, choice: Choice) -> AbstractContextManager[object]:
        """Nothing around it."""
        return self

    def verify(self, *, asked: bool) -> AbstractContextManager[object]:
        """Nothing around it."""
        return self

    def done(self, step: CommittedStep, /) -> None:
        """Nothing."""


UNWATCHED = Unwatched()


class NoWatch:
    """Nobody watches."""

    def request(self, operation: str) -> WatchedRequest:
        """Always the same."""
        return UNWATCHED

    def step(self, session: Session) -> WatchedStep:
        """Always the same."""
        return UNWATCHED


NO_WATCH = NoWatch()
