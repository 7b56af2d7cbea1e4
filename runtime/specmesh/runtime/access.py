"""Which peer may call which method, by the identities in its certificate."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf import descriptor_pool

from specmesh.runtime.config import ConfigError
from specmesh.runtime.errors import NotAllowed
from specmesh.runtime.given import KeyFault
from specmesh.runtime.tls import peer_identities

ANY = "*"

_log = logging.getLogger(__name__)


class Access:
    """The allow-list of a server. Once there is one, a method that it does not name is closed to everybody."""

    def __init__(self, allow: Mapping[str, Sequence[str]], service_names: Iterable[str]) -> None:
        """`allow`: `package.Service/Method`, `package.Service/*` or `*` to identities; the closest entry holds.

        Raises `ConfigError` for a method that this server does not have: it would protect nothing.
        """
        names = frozenset(service_names)
        for pattern in allow:
            if not _is_served(pattern, names):
                raise ConfigError(KeyFault("server.allow", f"no such method here: {pattern}"))
        self._allow = {pattern: frozenset(identities) for pattern, identities in allow.items()}

    @property
    def restricted(self) -> bool:
        """Whether there is a list."""
        return bool(self._allow)

    def check(self, method: str, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        """`method` as on the wire, with its leading slash. Raises `NotAllowed`."""
        if not self._allow:
            return
        identities = peer_identities(auth_context)
        if identities.isdisjoint(self._allowed(method.removeprefix("/"))):
            _log.warning("peer refused", extra={"method": method, "identities": sorted(identities)})
            raise NotAllowed("server.allow: the identities of this peer's certificate may not call this method")

    def _allowed(self, method: str) -> frozenset[str]:
        service = method.partition("/")[0]
        patterns = (method, f"{service}/{ANY}", ANY)
        return next((self._allow[pattern] for pattern in patterns if pattern in self._allow), frozenset())


def _is_served(pattern: str, names: frozenset[str]) -> bool:
    if pattern == ANY:
        return True
    service, _, method = pattern.partition("/")
    if service not in names:
        return False
    if method == ANY:
        return True
    try:
        descriptor_pool.Default().FindMethodByName(f"{service}.{method}")
    except KeyError:
        return False
    return True
