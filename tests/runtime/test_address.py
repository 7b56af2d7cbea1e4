import pytest

from specmesh.runtime.address import Address, Host
from specmesh.runtime.config import ConfigError, ConfigModel, load_config


class Example(ConfigModel):
    host: Host = "127.0.0.1"
    addresses: tuple[Address, ...] = ()


def load(**overrides: str) -> Example:
    return load_config(Example, path=None, environ={}, overrides=overrides, prefix="X")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:50051", "draft-0.draft.mesh.svc:1", "localhost:65535", "[::1]:50051", "[fe80::1%eth0]:1",
        "my_host:80", "dns:///drafts.mesh.svc:50052", "dns:drafts.mesh.svc:50052", "ipv4:127.0.0.1:50051",
        "ipv4:127.0.0.1:50051,127.0.0.2:50051", "ipv6:[::1]:50051", "unix:/run/draft:1", "unix:///run/draft",
        "unix-abstract:draft",
    ],
)  # fmt: skip
def test_addresses_that_can_be_reached_are_taken_as_they_are(address: str) -> None:
    assert load(addresses=f'["{address}"]').addresses == (address,)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("localhost", "has no port: HOST:PORT, such as localhost:50051"),
        ("localhost:", "has no port"),
        ("dns:///drafts.svc", "has no port: dns:///NAME:PORT, such as dns:///drafts.svc:50051"),
        (":50051", "has no host"),
        ("dns:///:50051", "has no host"),
        ("", "is empty"),
        ("localhost:0", "the port must be from 1 to 65535"),
        ("localhost:65536", "the port must be from 1 to 65535"),
        ("localhost:5005x", "the port must be a number"),
        ("localhost:+5", "the port must be a number"),
        ("http://localhost:50051", "http:// in front: HOST:PORT, such as localhost:50051"),
        ("https://localhost:50051/", "https:// in front: HOST:PORT, such as localhost:50051"),
        ("grpc://localhost:50051", "grpc:// in front"),
        ("dns://localhost:50051", "dns:// in front"),
        ("dns://8.8.8.8/localhost:50051", "dns:// in front"),
        ("dns:localhost", "has no port: dns:NAME:PORT, such as dns:localhost:50051"),
        ("dns:50051", "has no port: dns:NAME:PORT"),
        ("ipv4:127.0.0.1:0", "the port must be from 1 to 65535"),
        ("ipv4:127.0.0.1:1,127.0.0.2", "has no port: ipv4:HOST:PORT"),
        ("ipv6:::1:50051", "is neither HOST:PORT nor dns:///NAME:PORT; an IPv6 address stands in [ ]"),
        ("unix:", "has no path"),
        ("unix-abstract:", "has no path"),
        ("tcp:localhost:50051", "is neither HOST:PORT nor dns:///NAME:PORT"),
        ("::1:50051", "is neither HOST:PORT nor dns:///NAME:PORT; an IPv6 address stands in [ ]"),
        ("local host:50051", "is neither"),
        ("localhost:50051/path", "the port must be a number"),
        (" localhost:50051", "is neither"),
    ],
)
def test_an_address_that_nothing_could_reach_is_refused_with_its_key_and_what_to_write(
    address: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(addresses=f'["ok:1", "{address}"]')
    said = str(caught.value)
    assert said.startswith(f'addresses.1: "{address}"')
    assert words in said
    assert said.endswith(" (from --set addresses)")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", "[::]", "[::1]"])
def test_hosts_to_listen_on_are_names_and_numbers(host: str) -> None:
    assert load(host=f'"{host}"').host == host


@pytest.mark.parametrize("host", ["", "localhost:50051", "http://localhost", "::", "a b", "unix:/run/socket"])
def test_a_host_holds_no_port_and_no_scheme(host: str) -> None:
    with pytest.raises(ConfigError, match=r'^host: ".*" is no host name or number'):
        load(host=f'"{host}"')
