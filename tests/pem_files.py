"""Certificates as files, as a mounted secret holds them: one folder per identity, `tls.crt`, `tls.key`, `ca.crt`."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from specmesh.runtime.config import ClientTls, TlsConfig


class Authority:
    """Issues into folders; a folder that exists is replaced file by file, each in one move."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()

    def issue(self, name: str, *identities: str, expired: bool = False, trusts: "Authority | None" = None) -> Path:
        """A folder for the identities (DNS names); `trusts` is the authority in its `ca.crt`, else this one."""
        start = datetime.now(UTC) - timedelta(days=30)
        validity: dict[str, Any] = {"not_before": start, "not_after": start + timedelta(days=1)} if expired else {}
        certificate = self.ca.issue_cert(*(identities or (name,)), **validity)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        _put(folder / "tls.crt", certificate.cert_chain_pems[0].bytes())
        _put(folder / "tls.key", certificate.private_key_pem.bytes())
        _put(folder / "ca.crt", (trusts or self).ca.cert_pem.bytes())
        return folder


def _put(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


def server_tls(folder: Path, *, mutual: bool = False) -> TlsConfig:
    """Of a server with this folder's certificate."""
    authority = folder / "ca.crt" if mutual else None
    return TlsConfig(cert_file=folder / "tls.crt", key_file=folder / "tls.key", client_ca_file=authority)


def client_tls(folder: Path, server_name: str | None = "localhost", *, mutual: bool = True) -> ClientTls:
    """Of a client; without `mutual` it shows no certificate."""
    own = {"cert_file": folder / "tls.crt", "key_file": folder / "tls.key"} if mutual else {}
    return ClientTls(ca_file=folder / "ca.crt", server_name=server_name, **own)
