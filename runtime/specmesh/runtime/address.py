"""Addresses: `host:port`, `dns:///name:port` for every address behind a name, or with a scheme that gRPC knows."""

import re
from typing import Annotated

from pydantic import AfterValidator

NAME_PREFIX = "dns:///"
MAX_PORT = 65_535
EXAMPLE_PORT = 50051
LISTS = ("ipv4:", "ipv6:")
"""Schemes of gRPC's behind which several addresses may stand, with commas."""
_PREFIX = re.compile(r"dns:///|(dns|ipv4|ipv6):(?!//)")
_SOCKET = re.compile(r"unix(-abstract)?:(//)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[^:/\[\]\s]+")


def checked_address(address: str, *, example_port: int = EXAMPLE_PORT) -> str:
    """The address itself. Raises `ValueError` saying why nothing could be reached by it, and how it would be."""
    if not address:
        raise ValueError('"" is empty: HOST:PORT')
    if socket := _SOCKET.match(address):
        if socket.end() == len(address):
            raise ValueError(f'"{address}" has no path')
        return address
    prefix = found.group() if (found := _PREFIX.match(address)) else ""
    rest = address.removeprefix(prefix)
    for each in rest.split(",") if prefix in LISTS else (rest,):
        if fault := _fault(each, prefix, example_port):
            raise ValueError(f'"{address}"{fault}')
    return address


def _fault(rest: str, prefix: str, example_port: int) -> str:
    """What is wrong with one address behind its prefix; empty for nothing."""
    form = f"{prefix}{'NAME' if prefix.startswith('dns') else 'HOST'}:PORT"
    if scheme := _SCHEME.match(rest):
        bare = next(part for part in (*rest[scheme.end() :].split("/"), "localhost") if part)
        return f" has {scheme.group()} in front: HOST:PORT, such as {_example(bare, example_port)}"
    host, colon, port = rest.rpartition(":")
    if not colon:
        host, port = port, ""
    if colon and not host:
        return f" has no host: {form}"
    if not _HOST.fullmatch(host):
        hint = "; an IPv6 address stands in [ ]" if re.fullmatch(r"[0-9A-Fa-f:.]+", rest) else ""
        return f" is neither HOST:PORT nor {NAME_PREFIX}NAME:PORT{hint}"
    if not port:
        return f" has no port: {form}, such as {prefix}{_example(host, example_port)}"
    if not re.fullmatch(r"[0-9]+", port):
        return f": the port must be a number from 1 to {MAX_PORT}"
    return "" if 1 <= int(port) <= MAX_PORT else f": the port must be from 1 to {MAX_PORT}"


def _example(rest: str, port: int) -> str:
    return rest if re.search(r":[0-9]+$", rest) else f"{rest}:{port}"


def checked_host(host: str) -> str:
    """The host itself. Raises `ValueError` for what no socket could listen on."""
    if not _HOST.fullmatch(host):
        raise ValueError(f'"{host}" is no host name or number: without scheme and port, an IPv6 address in [ ]')
    return host


Address = Annotated[str, AfterValidator(checked_address)]
"""Where a service is."""
Host = Annotated[str, AfterValidator(checked_host)]
"""Where a server listens; its port is a key of its own."""
