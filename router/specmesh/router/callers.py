"""Who calls, and what a caller may do. The seam for stronger authentication: `Callers.identify` is all that is used."""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from specmesh.router.config import CallerConfig, RouterConfig
from specmesh.runtime.config import ConfigError
from specmesh.runtime.errors import NotAllowed
from specmesh.runtime.given import KeyFault
from specmesh.runtime.reloading import Reloaded

CLIENT, DEBUG, OPERATOR = "client", "debug", "operator"
ALL_ROLES = frozenset({CLIENT, DEBUG, OPERATOR})
MIN_TOKEN_BYTES = 16
"""Of tokens in files; shorter ones are slips."""


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
    max_tokens_per_minute: int = 0
    """Of prompts and outputs; 0 is no limit."""

    def require(self, role: str) -> None:
        """Raises `NotAllowed` naming the role."""
        if role not in self.roles:
            raise NotAllowed(f"this call needs the {role} role")


class Callers:
    """Callers of a configuration, by bearer token or certificate. Without any, everybody has all roles and pools."""

    def __init__(self, config: RouterConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` decides when token files are looked at again. Raises `ConfigError` for one that cannot be used."""
        self._all_pools = frozenset(pool.name for pool in config.pools)
        self._default_sessions = config.limits.max_sessions_per_caller
        self._default_tokens = config.limits.max_tokens_per_caller_minute
        self._known = [(self._caller(caller), CallerTokens(caller, clock)) for caller in config.callers]
        self._by_identity = {
            identity: caller
            for (caller, _), settings in zip(self._known, config.callers, strict=True)
            for identity in settings.identities
        }

    def _caller(self, settings: CallerConfig) -> Caller:
        return Caller(
            name=settings.name,
            pools=self._all_pools if settings.pools is None else frozenset(settings.pools),
            roles=settings.roles,
            max_priority=settings.max_priority,
            max_sessions=settings.max_sessions or self._default_sessions,
            max_tokens_per_minute=settings.max_tokens_per_minute or self._default_tokens,
        )

    def identify(
        self, metadata: Mapping[str, str | bytes], peer: str, identities: frozenset[str] = frozenset()
    ) -> Caller:
        """The caller behind a call's metadata or its peer's certificate. Raises `NotAuthenticated`.

        A token that is given must be right, whatever the certificate says.
        """
        if not self._known:
            host = peer.rpartition(":")[0]
            return Caller(
                f"host {host}",
                self._all_pools,
                max_sessions=self._default_sessions,
                max_tokens_per_minute=self._default_tokens,
            )
        if "authorization" in metadata:
            found = self._by_token(metadata["authorization"])
        else:
            found = [self._by_identity[each] for each in sorted(identities & self._by_identity.keys())]
        if not found:
            raise NotAuthenticated("authorization: a bearer token of a known caller is needed")
        return found[0]

    def _by_token(self, header: str | bytes) -> list[Caller]:
        given = (header if isinstance(header, str) else "").removeprefix("Bearer ").encode()
        digest = hashlib.sha256(given).digest()
        # Every token is compared, so that the time says nothing about which one was nearly right.
        return [caller for caller, tokens in self._known if tokens.match(digest)]


class CallerTokens:
    """SHA-256 digests of one caller's tokens: of equal length, so that comparing them tells nothing of theirs."""

    def __init__(self, settings: CallerConfig, clock: Callable[[], float]) -> None:
        """Raises `ConfigError`: a service should not start with a caller that cannot call."""
        self._file: Reloaded[tuple[bytes, ...]] | None = None
        self._fixed: tuple[bytes, ...] = ()
        if settings.token is not None:
            self._fixed = (_digest(settings.token.get_secret_value().encode()),)
        elif settings.token_file is not None:
            path = settings.token_file
            try:
                self._file = Reloaded([path], lambda: _read_tokens(path), clock=clock)
            except (OSError, ValueError) as error:
                raise ConfigError(KeyFault("callers.token_file", f"{path}: {error}")) from None
            if not self._file.value:
                raise ConfigError(KeyFault("callers.token_file", f"{path} holds no token, or is not there"))

    def match(self, digest: bytes) -> bool:
        """Whether it is that of one of the tokens; takes as long whichever it is."""
        tokens = self._file.value if self._file is not None else self._fixed
        return sum(hmac.compare_digest(token, digest) for token in tokens) > 0


def _read_tokens(path: Path) -> tuple[bytes, ...]:
    """Raises OSError, or ValueError for a token that could be guessed."""
    try:
        lines = path.read_bytes().split()
    except FileNotFoundError:
        return ()
    if any(len(line) < MIN_TOKEN_BYTES for line in lines):
        raise ValueError(f"a token needs {MIN_TOKEN_BYTES} characters")
    return tuple(_digest(line) for line in lines)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
