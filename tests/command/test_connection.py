"""How a command finds a router, and what it says when the two do not understand each other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import trustme
from click.testing import CliRunner, Result

from specmesh.cli import main


def drafts(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["drafts", *arguments])


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://h:1", "no http here; give --address h:1."),
        ("https://h:1/", "no http here; give --address h:1 and --tls."),
        ("h", '"h" has no port: HOST:PORT, such as h:50050.'),
        ("h:", '"h:" has no port: HOST:PORT, such as h:50050.'),
        ("h:port", "the port must be a number from 1 to 65535."),
        ("::1", "an IPv6 address stands in [ ]."),
        ("h:0", "the port must be from 1 to 65535."),
        ("h:65536", "the port must be from 1 to 65535."),
        ("grpc://h:1", "grpc:// in front: HOST:PORT, such as h:1."),
        ("dns:///h", "has no port: dns:///NAME:PORT, such as dns:///h:50050."),
        ("", "is empty: HOST:PORT."),
    ],
)
def test_an_address_that_cannot_be_one_is_a_usage_error(address: str, words: str) -> None:
    result = CliRunner().invoke(main, ["drafts", "--address", address], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "--address: " in result.output
    assert words in result.output


@pytest.mark.parametrize("form", ["ipv4:127.0.0.1:{}", "dns:localhost:{}", "dns:///localhost:{}", "localhost:{}"])
def test_every_form_of_an_address_reaches_a_server(servers: dict[str, str], form: str) -> None:
    result = drafts("--address", form.format(servers["plain"].rpartition(":")[2]))
    assert result.exit_code == 1
    assert "Is this a router's address?" in result.stderr


@pytest.fixture(scope="module")
def authorities() -> tuple[trustme.CA, trustme.CA]:
    """The one that signed the servers' certificates, and another."""
    return trustme.CA(), trustme.CA()


@pytest.fixture(scope="module")
def servers(authorities: tuple[trustme.CA, trustme.CA]) -> Iterator[dict[str, str]]:
    """Addresses of three that know no method: without TLS, with TLS, with TLS and client certificates."""
    pem = authorities[0].issue_cert("localhost")
    pair = [(pem.private_key_pem.bytes(), b"".join(each.bytes() for each in pem.cert_chain_pems))]
    ca = authorities[0].cert_pem.bytes()
    credentials = {
        "plain": None,
        "tls": grpc.ssl_server_credentials(pair),
        "mutual": grpc.ssl_server_credentials(pair, ca, require_client_auth=True),
    }
    running, addresses = [], {}
    for name, each in credentials.items():
        server = grpc.server(ThreadPoolExecutor(1))
        port = server.add_insecure_port("localhost:0") if each is None else server.add_secure_port("localhost:0", each)
        server.start()
        running.append(server)
        addresses[name] = f"localhost:{port}"
    yield addresses
    for server in running:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("server", "host", "options", "words"),
    [
        ("tls", "localhost", [], "it may expect TLS: --tls, --tls-ca"),
        ("plain", "localhost", ["--tls"], "The server does not speak TLS. Leave out --tls"),
        ("tls", "localhost", ["--tls-ca", "other"], "with --tls-ca FILE"),
        ("tls", "127.0.0.1", ["--tls-ca", "own"], "the name that its certificate is for"),
        ("mutual", "localhost", ["--tls-ca", "own"], "a client's certificate: --tls-cert and --tls-key"),
        ("tls", "localhost", ["--tls-ca", "own"], "Is this a router's address?"),
    ],
)
def test_a_failed_handshake_says_what_to_do(
    servers: dict[str, str],
    authorities: tuple[trustme.CA, trustme.CA],
    tmp_path: Path,
    server: str,
    host: str,
    options: list[str],
    words: str,
) -> None:
    """A plaintext client at a TLS server, the reverse, and what can be wrong with certificates."""
    for name, authority in zip(("own", "other"), authorities, strict=True):
        authority.cert_pem.write_to_path(tmp_path / name)
    given = [str(tmp_path / each) if each in ("own", "other") else each for each in options]
    result = drafts("--address", servers[server].replace("localhost", host), *given)
    assert result.exit_code == 1
    assert words in result.stderr
