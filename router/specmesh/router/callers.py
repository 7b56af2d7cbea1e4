"""Who calls, and what a caller may do. The seam for stronger authentication: `Callers.identify` is all that is used."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from specmesh.router.config import RouterConfig
from specmesh.runtime.errors import NotAllowed

DEBUG, OPERATOR = "debug", "operator"
ALL_ROLES = frozenset({DEBUG, OPERATOR})


class NotAuthenticated(NotAllowed):
    """No token, or one that nobody has."""

    status = grpc.StatusCode.UNAUTHENTICATED


@dataclass(frozen=True, slots=True)
class Caller:
    """An identity and its grants. `pools` are the only ones that its contexts may reach."""

    name: str
    pools: frozenset[str]
    roles: frozenset[str] = ALL_ROLES
    max_priority: int = 10
    max_sessions: int = 0

    def require(self, role: str) -> None:
        """Raises `NotAllowed` naming the role."""
        if role not in self.roles:
            raise NotAllowed(f"this call needs the {role} role")


class Callers:
    """Callers of a configuration, by bearer token. Without any, everybody has all roles and all pools."""

    def __init__(self, config: RouterConfig) -> None:
        self._all_pools = frozenset(pool.name for pool in config.pools)
        self._default_sessions = config.limits.max_sessions_per_caller
        self._by_token = [
            (
                caller.token.get_secret_value().encode(),
                Caller(
                    name=caller.name,
                    pools=self._all_pools if caller.pools is None else frozenset(caller.pools),
                    roles=caller.roles,
                    max_priority=caller.max_priority,
                    max_sessions=caller.max_sessions or self._default_sessions,
                ),
            )
            for caller in config.callers
        ]

    def identify(self, metadata: Mapping[str, str | bytes], peer: str) -> Caller:
        """The caller behind a call's metadata. Raises `NotAuthenticated`."""
        if not self._by_token:
            host = peer.rpartition(":")[0]
            return Caller(f"host {host}", self._all_pools, max_sessions=self._default_sessions)
        header = metadata.get("authorization", "")
        given = (header if isinstance(header, str) else "").removeprefix("Bearer ").encode()
        # Every token is compared, so that the time says nothing about which one was nearly right.
        found = [caller for token, caller in self._by_token if hmac.compare_digest(token, given)]
        if not found:
            raise NotAuthenticated("authorization: a bearer token of a known caller is needed")
        return found[0]
