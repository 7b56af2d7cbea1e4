"""TLS of a server: credentials whose files are read again when they change, and who the peer of a call is."""

import ssl
from collections.abc import Iterable, Mapping

import grpc

from specmesh.runtime.config import ClientTls, ConfigError, TlsConfig
from specmesh.runtime.given import KeyFault
from specmesh.runtime.reloading import Reloaded

SERVER_FILES = ("cert_file", "key_file", "client_ca_file")


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Credentials that follow the files of `tls`: a connection made after a change gets the new certificate.

    Connections that are open stay. Raises `ConfigError` naming the key of a file that cannot be used.
    """
    check_files(tls, "server.tls")
    paths = [path for name in SERVER_FILES if (path := getattr(tls, name)) is not None]
    try:
        files = Reloaded(paths, lambda: _server_configuration(tls))
    except (OSError, ValueError) as error:
        raise ConfigError(KeyFault("server.tls", str(error))) from None
    latest = files.value

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC before every handshake; None means as before."""
        nonlocal latest
        before, latest = latest, files.value
        return None if latest is before else latest

    return grpc.dynamic_ssl_server_credentials(
        latest,
        changed,  # type: ignore[arg-type]  # its stub forgets the None
        require_client_authentication=tls.client_ca_file is not None,
    )


def check_files(tls: TlsConfig | ClientTls, section: str) -> None:
    """Raises `ConfigError` naming the keys whose files cannot be read: better at the start than at a connection.

    `load_config` has told so already, with where each was given; this is for what was configured in Python, and for
    files that went away since.
    """
    if faults := [KeyFault(f"{section}.{name}", fault) for name, fault in tls.faults()]:
        raise ConfigError(*faults)


def _server_configuration(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    """Raises OSError, or ValueError for files that do not belong together (half of a rotation, say)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
    except ssl.SSLError as error:
        raise ValueError(f"certificate, key and authority cannot be used together: {error.reason}") from None
    pair = (tls.key_file.read_bytes(), tls.cert_file.read_bytes())
    authority = tls.client_ca_file.read_bytes() if tls.client_ca_file else None
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority)


def peer_identities(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """DNS names and URIs of a peer's verified certificate; empty without one. Common names say nothing."""
    names = {name.decode() for name in auth_context.get("peer_dns", ())}
    uris = {uri.decode() for uri in auth_context.get("peer_uri", ())}
    # A URI is taken from where an authority puts URIs only.
    return frozenset({name for name in names if "://" not in name} | uris)
