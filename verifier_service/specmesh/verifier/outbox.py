"""What a pass of the engine has to say to the event loop."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from specmesh.runtime.errors import MeshError
from specmesh.runtime.types import EntryFailure
from specmesh.verifier.admission import Opening
from specmesh.verifier.session import Answer, AnswerStream
from specmesh.verifier.step import Stepped, result_of


@dataclass(slots=True)
class Outbox:
    """Steps and failures by stream, and openings that are settled: how many tokens were cached, or an error."""

    settled: list[tuple[Opening, MeshError | int]] = field(default_factory=list)
    _said: dict[AnswerStream, list[Stepped | EntryFailure]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._said or self.settled)

    def say(self, stream: AnswerStream, said: Stepped | EntryFailure) -> None:
        """Tell a peer."""
        if (already := self._said.get(stream)) is None:
            self._said[stream] = [said]
        else:
            already.append(said)

    def answers(self) -> Iterator[tuple[AnswerStream, list[Answer]]]:
        """By stream. The answers are made here, where they are delivered: the next tick need not wait for that."""
        for stream, said in self._said.items():
            yield stream, [each if isinstance(each, EntryFailure) else result_of(each) for each in said]

    def refuse(self, openings: Iterable[Opening], error: MeshError) -> None:
        """These are not admitted."""
        self.settled += [(opening, error) for opening in openings]
