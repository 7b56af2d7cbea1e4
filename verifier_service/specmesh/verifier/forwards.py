"""The forward passes of one tick: one, or where the device has no memory for it, several smaller ones."""

import logging
from collections.abc import Iterator, Sequence

from specmesh.verifier.backend import Backend, BackendLost, OutOfMemory, Verified
from specmesh.verifier.batcher import Share
from specmesh.verifier.step import work_of

_log = logging.getLogger(__name__)


def run_forwards(backend: Backend, shares: Sequence[Share]) -> Iterator[tuple[Sequence[Share], Verified | None]]:
    """The shares in the parts in which they were computed, in order; None: this part failed.

    A part that the device has no memory for is halved, until it is a single session: that one fails, alone. To compute
    a share twice changes nothing: its numbers depend on its place in the text only.
    """
    try:
        verified = backend.verify([work_of(share) for share in shares])
    except OutOfMemory:
        _log.warning("out of memory in a forward pass", extra={"sessions": len(shares)})
        if len(shares) == 1:
            yield shares, None
            return
        middle = len(shares) // 2
        yield from run_forwards(backend, shares[:middle])
        yield from run_forwards(backend, shares[middle:])
        return
    except BackendLost:
        raise
    except Exception:  # noqa: BLE001  a fault of the model: the sessions of other passes must live
        _log.exception("a tick failed", extra={"sessions": len(shares)})
        yield shares, None
        return
    yield shares, verified
