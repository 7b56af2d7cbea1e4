"""The forward passes of one tick: one, or where the device has no memory for it, several smaller ones."""

import logging
from collections.abc import Iterator, Sequence

from specmesh.verifier.backend import Backend, BackendLost, OutOfMemory, Verified, Work

_log = logging.getLogger(__name__)


def run_forwards(backend: Backend, batch: Sequence[Work]) -> Iterator[tuple[Sequence[Work], Verified | None]]:
    """The batch in the parts in which it was computed, in order; None: this part failed.

    A part that the device has no memory for is halved, until it is a single session: that one fails, alone. To compute
    a session twice changes nothing: its numbers depend on its place in the text only.
    """
    try:
        verified = backend.verify(batch)
    except OutOfMemory:
        _log.warning("out of memory in a forward pass", extra={"sessions": len(batch)})
        if len(batch) == 1:
            yield batch, None
            return
        middle = len(batch) // 2
        yield from run_forwards(backend, batch[:middle])
        yield from run_forwards(backend, batch[middle:])
        return
    except BackendLost:
        raise
    except Exception:  # noqa: BLE001  a fault of the model: the sessions of other passes must live
        _log.exception("a tick failed", extra={"sessions": len(batch)})
        yield batch, None
        return
    yield batch, verified
