"""What a pass of the engine has to say to the event loop."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from specmesh.runtime.errors import MeshError
from specmesh.verifier.admission import Opening
from specmesh.verifier.session import Answer, AnswerStream


@dataclass(slots=True)
class Outbox:
    """Answers by stream, and openings that are settled: how many tokens were cached, or an error."""

    answers: dict[AnswerStream, list[Answer]] = field(default_factory=dict)
    settled: list[tuple[Opening, MeshError | int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.answers or self.settled)

    def answer(self, stream: AnswerStream, answer: Answer) -> None:
        """Tell a peer."""
        self.answers.setdefault(stream, []).append(answer)

    def refuse(self, openings: Iterable[Opening], error: MeshError) -> None:
        """These are not admitted."""
        self.settled += [(opening, error) for opening in openings]
