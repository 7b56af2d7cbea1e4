"""Addresses in a configuration: `host:port`, or `dns:///name:port` for every address behind a name."""

import re
from typing import Annotated

from pydantic import AfterValidator

NAME_PREFIX = "dns:///"
MAX_PORT = 65_535
EXAMPLE_PORT = 50051
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[^:/\[\]\s]+")


def checked_address(address: str) -> str:
    """The address itself. Raises `ValueError` saying why nothing could be reached by it, and how it would be."""
    prefix = NAME_PREFIX if address.startswith(NAME_PREFIX) else ""
    form = f"{prefix}{'NAME' if prefix else 'HOST'}:PORT"
    rest = address.removeprefix(prefix)
    if not address:
        raise ValueError('"" is empty: HOST:PORT')
    if scheme := _SCHEME.match(rest):
        bare = next(part for part in (*rest[scheme.end() :].split("/"), "localhost") if part)
        raise ValueError(f'"{address}" has {scheme.group()} in front: HOST:PORT, such as {_example(bare)}')
    host, colon, port = rest.rpartition(":")
    if not colon:
        host, port = port, ""
    if colon and not host:
        raise ValueError(f'"{address}" has no host: {form}')
    if not _HOST.fullmatch(host):
        hint = "; an IPv6 address stands in [ ]" if re.fullmatch(r"[0-9A-Fa-f:.]+", rest) else ""
        raise ValueError(f'"{address}" is neither HOST:PORT nor {NAME_PREFIX}NAME:PORT{hint}')
    if not port:
        raise ValueError(f'"{address}" has no port: {form}, such as {prefix}{_example(host)}')
    if not re.fullmatch(r"[0-9]+", port):
        raise ValueError(f'"{address}": the port must be a number from 1 to {MAX_PORT}')
    if not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f'"{address}": the port must be from 1 to {MAX_PORT}')
    return address


def _example(rest: str) -> str:
    return rest if re.search(r":[0-9]+$", rest) else f"{rest}:{EXAMPLE_PORT}"


def checked_host(host: str) -> str:
    """The host itself. Raises `ValueError` for what no socket could listen on."""
    if not _HOST.fullmatch(host):
        raise ValueError(f'"{host}" is no host name or number: without scheme and port, an IPv6 address in [ ]')
    return host


Address = Annotated[str, AfterValidator(checked_address)]
"""Where a service is."""
Host = Annotated[str, AfterValidator(checked_host)]
"""Where a server listens; its port is a key of its own."""
