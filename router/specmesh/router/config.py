"""What a router can be told."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from specmesh.router.health import Cooldown
from specmesh.router.policies import POLICIES
from specmesh.router.policies.settings import PolicySettings
from specmesh.runtime.address import Address
from specmesh.runtime.config import ClientTls, ConfigModel, LogConfig, ServerConfig
from specmesh.runtime.given import KeyFault
from specmesh.runtime.telemetry.config import TelemetryConfig

Name = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")


class PoolConfig(ConfigModel):
    """Replicas that draft with one model. A pool that is not trusted serves COUPLED, greedy and one-hot blocks only."""

    name: str = Name
    addresses: tuple[Address, ...] = Field(min_length=1)
    """`host:port`, or `dns:///name:port` for every address behind a name."""
    trust: Literal["full", "untrusted"] = "full"
    server_name: str | None = None
    """Name that a certificate of this pool must have, instead of `tls.server_name`."""


class PolicyConfig(ConfigModel):
    """Which policy chooses arm and length, and where its randomness starts."""

    name: str = "goodput"
    seed: int = Field(default=0, ge=0)
    settings: PolicySettings = PolicySettings()

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f'there is no policy "{name}": {", ".join(sorted(POLICIES))}')
        return name


class DraftsConfig(ConfigModel):
    """How long a block may take and what happens to a draft that does not keep to it."""

    block_deadline_ms: float = Field(default=500.0, gt=0)
    """Upper bound of a block's deadline, and the deadline of an arm whose time is not known."""
    min_deadline_ms: float = Field(default=25.0, gt=0)
    deadline_multiple: float = Field(default=4.0, ge=1)
    """A block may take this multiple of its arm's recent time."""
    max_row: int = Field(default=0, ge=0, le=65_536)
    """Ids per row at most; 0 leaves it to the draft service."""
    cooldown_seconds: float = Field(default=0.25, gt=0)
    """First pause of a replica that failed; doubled by each further failure."""
    max_cooldown_seconds: float = Field(default=10.0, gt=0, le=25.0)
    max_reconnect_seconds: float = Field(default=2.0, gt=0, le=25.0)
    """Longest pause between two attempts to reach a replica."""
    late_blocks: int = Field(default=4, ge=1)
    """So many blocks in a row cut at the deadline are a failure. One of which nothing arrived takes the replica from
    the sessions until a probe is answered; two of them in a row are a failure."""

    @property
    def cooldown(self) -> Cooldown:
        """How replicas rest."""
        return Cooldown(self.cooldown_seconds, self.max_cooldown_seconds, self.max_reconnect_seconds, self.late_blocks)


class SessionsConfig(ConfigModel):
    """How sessions live in verifiers."""

    lease_ms: int = Field(default=30_000, ge=100)
    """A verifier frees what this router left behind after so long."""
    max_resumes: int = Field(default=5, ge=0)
    """Verifiers that one session may lose."""
    resume_seconds: float = Field(default=5.0, ge=0)
    """How long a session that lost its verifier waits for another one."""
    hold_out: float = Field(default=0.01, ge=0, le=1)
    """Share of the sessions that leave drafts to the policy and get none, so that the gain is known; 0 turns it off."""
    max_run_tokens: int = Field(default=8, ge=1)
    """Plain tokens that a verifier is asked for at once while there is nothing to choose; 1 asks for each."""
    max_concurrent_opens: int = Field(default=64, ge=1)
    """Sessions that a verifier is asked to open at a time; those that resume go first."""
    prefix_slack: int = Field(default=4, ge=0)
    """A session goes to a verifier that has seen its beginning while that has at most so many more than the least
    loaded one."""


class LimitsConfig(ConfigModel):
    """What one router takes on."""

    max_sessions: int = Field(default=1024, ge=1)
    max_queued: int = Field(default=1024, ge=0)
    """Requests that wait for a session to end; more are refused with RESOURCE_EXHAUSTED."""
    max_sessions_per_caller: int = Field(default=0, ge=0)
    """Sessions and waiting requests of one caller; 0 is no limit. Without authentication a caller is a host."""
    max_tokens_per_caller_minute: int = Field(default=0, ge=0)
    """Tokens of prompts and outputs that one caller may use in a minute, and at most save up; 0 is no limit."""
    retry_seconds: float = Field(default=1.0, ge=0)
    """What a refused caller is asked to wait."""
    max_text_bytes: int = Field(default=1024 * 1024, ge=1)
    """UTF-8 bytes of a text or of all messages of a chat."""
    max_messages: int = Field(default=4096, ge=1)
    """Of a chat."""
    max_unread_bytes: int = Field(default=256 * 1024, ge=1024)
    """Output of one stream that its client has not read; the session waits at this bound, or at half of
    server.max_message_bytes where that is less and this is not given.
    """
    require_deadline: bool = True


class RouterTelemetryConfig(TelemetryConfig):
    """What a router also tells apart."""

    tenants: frozenset[str] = frozenset()
    """Callers whose tokens and device time are counted under their names; all others are `other`."""


class CallerConfig(ConfigModel):
    """One caller, known by a bearer token or by a certificate. Where none is configured everybody may do everything."""

    name: str = Name
    token: SecretStr | None = None
    token_file: Path | None = None
    """Tokens, one a line: while one replaces another both hold. Read again when it changes; a file that is gone, or
    empty, revokes them.
    """
    identities: tuple[str, ...] = ()
    """DNS names and URIs of client certificates (`server.tls.client_ca_file`)."""
    pools: tuple[str, ...] | None = None
    """Pools that this caller's contexts may reach; absent: all."""
    roles: frozenset[Literal["client", "debug", "operator"]] = frozenset({"client"})
    """`client` generates, `debug` also gets reports of every step, `operator` lists the arms."""
    max_priority: int = Field(default=0, ge=-10, le=10)
    max_sessions: int | None = Field(default=None, ge=1)
    """Instead of limits.max_sessions_per_caller."""
    max_tokens_per_minute: int | None = Field(default=None, ge=1)
    """Instead of limits.max_tokens_per_caller_minute."""

    @model_validator(mode="after")
    def _can_be_known(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file exclude each other")
        if self.token is None and self.token_file is None and not self.identities:
            raise ValueError("one of token, token_file and identities is needed to know the caller by")
        if self.token is not None and not self.token.get_secret_value():
            raise KeyFault("token", "is empty")
        return self


class RouterConfig(ConfigModel):
    """Configuration of `specmesh router`."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    tls: ClientTls | None = None
    """Towards verifiers and drafts."""
    verifier_server_name: str | None = None
    """Name that a verifier's certificate must have, instead of `tls.server_name`: a draft must not pass for one."""
    verifiers: tuple[Address, ...] = Field(min_length=1)
    pools: tuple[PoolConfig, ...] = ()
    model_name: str = ""
    """Name for `GenerateRequest.model`; empty: what the verifier calls its model."""
    workloads: frozenset[str] = frozenset()
    """Values that `GenerateRequest.workload` may have."""
    policy: PolicyConfig = PolicyConfig()
    drafts: DraftsConfig = DraftsConfig()
    sessions: SessionsConfig = SessionsConfig()
    limits: LimitsConfig = LimitsConfig()
    callers: tuple[CallerConfig, ...] = ()
    telemetry: RouterTelemetryConfig = RouterTelemetryConfig()
    discovery_seconds: float = Field(default=5.0, gt=0)
    """Interval at which names are resolved again."""

    @model_validator(mode="after")
    def _names_are_unique_and_known(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise KeyFault("pools", "two pools have the same name")
        unknown = {pool for caller in self.callers for pool in caller.pools or ()} - set(names)
        if unknown:
            raise KeyFault("callers", f"no such pool: {', '.join(sorted(unknown))}")
        fixed = self.policy.settings.fixed_arm.partition("@")[0]
        if fixed and fixed not in names:
            there = f"; there are {', '.join(names)}" if names else "; there is none"
            raise KeyFault("policy.settings.fixed_arm", f'no such pool: "{fixed}"{there}')
        return self

    @model_validator(mode="after")
    def _messages_hold_what_is_unread(self) -> Self:
        most, limits = self.server.max_message_bytes // 2, self.limits
        if "max_unread_bytes" in limits.model_fields_set and limits.max_unread_bytes > most:
            raise KeyFault("limits.max_unread_bytes", f"at most {most}, half of server.max_message_bytes")
        return self

    @model_validator(mode="after")
    def _certificates_have_an_authority(self) -> Self:
        if self.tls is None and self.verifier_server_name:
            raise KeyFault("verifier_server_name", "has no meaning without tls")
        if self.tls is None and any(pool.server_name for pool in self.pools):
            raise KeyFault("pools", "server_name has no meaning without tls")
        if any(caller.identities for caller in self.callers) and not (
            self.server.tls and self.server.tls.client_ca_file
        ):
            raise KeyFault("callers.identities", "needs server.tls.client_ca_file")
        names = [name for caller in self.callers for name in (*caller.identities, f"name {caller.name}")]
        if len(set(names)) != len(names):
            raise KeyFault("callers", "two callers have the same name or identity")
        return self
