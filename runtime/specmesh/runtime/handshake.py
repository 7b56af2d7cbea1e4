"""Why a connection came to nothing, from what gRPC says of it: most often only one of the two sides speaks TLS."""

from enum import Enum


class HandshakeFault(Enum):
    """What is wrong between two peers, as people say it."""

    NO_TLS = "the server does not speak TLS"
    AUTHORITY = "the server's certificate is not signed by an authority that is trusted here"
    NAME = "the server's certificate is for another name than the one in the address"
    CLOSED = "the server closed the connection before an answer, as one does that expects TLS or a client's certificate"


_SIGNS = (
    ("WRONG_VERSION_NUMBER", HandshakeFault.NO_TLS),
    ("CERTIFICATE_VERIFY_FAILED", HandshakeFault.AUTHORITY),
    ("Hostname Verification Check failed", HandshakeFault.NAME),
    ("Socket closed", HandshakeFault.CLOSED),
    ("Connection reset by peer", HandshakeFault.CLOSED),
)
NEVER_CONNECTED = ("failed to connect to all addresses", "connections to all backends failing")
"""What gRPC's two ways to pick a connection say; one that was there and broke says other things."""


def handshake_fault(details: str) -> HandshakeFault | None:
    """What the details of UNAVAILABLE tell; None when they tell nothing of a handshake."""
    if not details.startswith(NEVER_CONNECTED):
        return None
    return next((fault for sign, fault in _SIGNS if sign in details), None)
