"""Options by which every command finds a router, and what it says when it does not."""

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import grpc

from specmesh.client import AsyncClient, SpecMeshError, Tls
from specmesh.command.mesh_config import DEFAULT_ADDRESS, DEFAULT_PORT
from specmesh.runtime.address import checked_address
from specmesh.runtime.handshake import HandshakeFault, handshake_fault

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

FAILED = 1

ADVICE = {
    grpc.StatusCode.UNAVAILABLE: "Is a router there (--address)? `specmesh up` starts a mesh on this machine.",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "The mesh is full; try again after the time it named.",
    grpc.StatusCode.DEADLINE_EXCEEDED: "Give it more time with --timeout, or ask for fewer tokens.",
    grpc.StatusCode.UNAUTHENTICATED: "Give the token of a caller that the router knows with --token-file.",
    grpc.StatusCode.PERMISSION_DENIED: "Ask the operator for the role; step reports can be left out with --no-steps.",
    grpc.StatusCode.NOT_FOUND: "`specmesh models` lists what is served.",
    grpc.StatusCode.UNIMPLEMENTED: "Is this a router's address? Clients cannot call drafts and verifiers.",
    grpc.StatusCode.INTERNAL: "The router's log has the rest.",
}
TLS_ADVICE = {
    HandshakeFault.NO_TLS: "Leave out --tls and the other --tls options, or give the address of its TLS port.",
    HandshakeFault.AUTHORITY: "Give the authority that signed its certificate with --tls-ca FILE.",
    HandshakeFault.NAME: "Give in --address the name that its certificate is for.",
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a router is and how to talk to it."""

    address: str
    tls: Tls | None
    token: str | None
    plaintext_token: bool

    def client(self, timeout: float = 30.0, traceparent: str | None = None) -> AsyncClient:
        """A client; `timeout` in seconds is that of every call."""
        return AsyncClient(
            self.address,
            tls=self.tls,
            token=self.token,
            plaintext_token=self.plaintext_token,
            timeout=timeout,
            tracer=traceparent,
        )


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS: Mapping[str, tuple[Sequence[str], dict[str, Any]]] = {
    "address": (["--address"], {"default": DEFAULT_ADDRESS, "show_default": True, "envvar": "SPECMESH_ADDRESS",
                                "help": "The router."}),
    "use_tls": (["--tls/--no-tls"], {"default": None, "help": "TLS; on when another --tls option is given."}),
    "tls_ca": (["--tls-ca"], {"type": _FILE, "help": "Authority of the router's certificate (PEM)."}),
    "tls_cert": (["--tls-cert"], {"type": _FILE, "help": "This client's certificate (PEM)."}),
    "tls_key": (["--tls-key"], {"type": _FILE, "help": "Its key (PEM)."}),
    "token_file": (["--token-file"], {"type": _FILE, "envvar": "SPECMESH_TOKEN_FILE",
                                      "help": "File with this caller's bearer token."}),
    "plaintext_token": (["--plaintext-token"], {"is_flag": True,
                                                "help": "Send the token without TLS; something else encrypts."}),
}  # fmt: skip


def connection_options(command: F) -> F:
    """Add --address, --tls-* and --token-file; the command gets `connection`."""

    @functools.wraps(command)
    def with_connection(**options: Any) -> object:  # noqa: ANN401  from click
        given = {name: options.pop(name) for name in _OPTIONS}
        return command(connection=_connection(**given), **options)

    decorated: Any = with_connection
    for name, (flags, attributes) in reversed(list(_OPTIONS.items())):
        decorated = click.option(*flags, name, **attributes)(decorated)
    return decorated  # type: ignore[no-any-return]


def _connection(
    *,
    address: str,
    use_tls: bool | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    plaintext_token: bool,
) -> Connection:
    given = any((tls_ca, tls_cert, tls_key))
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key are given together or not at all.")
    if use_tls is False and given:
        raise click.UsageError("--no-tls and other --tls options exclude each other.")
    tls = Tls(_bytes(tls_ca), _bytes(tls_key), _bytes(tls_cert)) if use_tls or given else None
    if token_file and tls is None and not plaintext_token:
        raise click.UsageError("--token-file needs TLS (--tls), or --plaintext-token where something else encrypts.")
    token = token_file.read_text().strip() if token_file else None
    return Connection(_checked_address(address), tls, token, plaintext_token)


def _checked_address(address: str) -> str:
    """Raises `UsageError` for what no channel could reach, and says what is missing."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme in ("http", "https"):
        more = " and --tls" if scheme == "https" else ""
        raise click.UsageError(f"--address: {address}: no http here; give --address {rest.rstrip('/')}{more}.")
    try:
        return checked_address(address, example_port=DEFAULT_PORT)
    except ValueError as error:
        raise click.UsageError(f"--address: {error}.") from None


def _bytes(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None


def run(main: Coroutine[Any, Any, R], connection: Connection, *, as_json: bool = False) -> R:
    """Run to the end; an error of the mesh is a line that says what to do next, and status 1.

    With `as_json` it is also a JSON object on standard output.
    """
    try:
        return asyncio.run(main)
    except SpecMeshError as error:
        if as_json:
            _write_error(error_json(error))
        fail(error, connection)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def usage_errors_told(*, as_json: bool) -> Iterator[None]:
    """A mistake of a command line is a JSON object too where one is expected; click says it in words, status 2."""
    try:
        yield
    except click.UsageError as error:
        if as_json:
            code = grpc.StatusCode.INVALID_ARGUMENT
            _write_error(error_json(SpecMeshError(code, error.format_message())))
        raise


def _write_error(error: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"error": error}, ensure_ascii=False, indent=2) + "\n")


def error_json(error: SpecMeshError) -> dict[str, Any]:
    """code, message, reason, field and retry_after, null where not known; what a stream had brought before it broke."""
    partial = error.partial
    return {
        "code": error.code.name,
        "message": error.message,
        "reason": error.reason or None,
        "field": error.field or None,
        "retry_after": error.retry_after,
        "partial": None if partial is None else {"text": partial.text, "token_ids": list(partial.token_ids)},
    }


def fail(error: SpecMeshError, connection: Connection) -> NoReturn:
    """Say what happened and what to do."""
    sys.stderr.write(f"specmesh: {connection.address}: {error}\n")
    advice = _tls_advice(error, uses_tls=connection.tls is not None) or ADVICE.get(error.code)
    if error.reason == "NO_VERIFIER":
        advice = "The router answers, but no verifier does: is one running, and has it loaded its model?"
    if error.field.startswith("draft.arms"):
        advice = "`specmesh drafts` lists the arms."
    if error.retry_after is not None:
        advice = f"Try again in {error.retry_after:g} s."
    if advice:
        sys.stderr.write(f"{advice}\n")
    sys.exit(FAILED)


def _tls_advice(error: SpecMeshError, *, uses_tls: bool) -> str:
    """What to do about a handshake that failed; empty when none did."""
    fault = handshake_fault(error.message) if error.code is grpc.StatusCode.UNAVAILABLE else None
    if fault is None:
        return ""
    if fault is HandshakeFault.CLOSED:
        what = "ask for a client's certificate: --tls-cert and --tls-key" if uses_tls else "expect TLS: --tls, --tls-ca"
        return f"The server closed the connection before an answer; it may {what}."
    return f"{fault.value[0].upper()}{fault.value[1:]}. {TLS_ADVICE[fault]}"
