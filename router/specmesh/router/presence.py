"""What the log says of replicas that come and go: each change once, not every attempt."""

import logging

_log = logging.getLogger(__name__)


class Presence:
    """One replica's. It is absent until it is `ready`, ready until it is `out`."""

    def __init__(self, kind: str, **names: object) -> None:
        """`kind`: draft or verifier; `names` go with every line."""
        self._kind = kind
        self._names = names
        self._ready: bool | None = None
        self._said_absent = False

    def ready(self) -> None:
        """It serves."""
        if not self._ready:
            self._ready = True
            _log.info("%s ready", self._kind, extra=self._names)

    def out(self, reason: str) -> None:
        """It does not serve, any more or yet."""
        if self._ready:
            self._ready = False
            _log.warning("%s lost", self._kind, extra=self._names | {"reason": reason})
        elif self._ready is None and not self._said_absent:
            self._said_absent = True
            _log.info("%s not there yet", self._kind, extra=self._names | {"reason": reason})
