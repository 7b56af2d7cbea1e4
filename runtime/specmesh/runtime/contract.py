"""The numbers that a router, a draft and a verifier must share to work together.

A change to the Philox layout, the row format, the order of the law or the context hash is a new
`CONTRACT_VERSION`; a service that says another one is INCOMPATIBLE.
"""

from enum import IntEnum

CONTRACT_VERSION = 1

ROW_TOTAL_BITS = 24
ROW_TOTAL = 1 << ROW_TOTAL_BITS
"""Weights of a row sum to this; weight / ROW_TOTAL is exact in float32."""

DEFAULT_ROW_MASS = 0.995
DEFAULT_MAX_ROW = 128

OPEN_CHUNK_TOKENS = 16_384
"""Token ids in one chunk of an `Open` call: 64 KiB as uint32."""

DRAFT_SERVICE = "specmesh.v1.DraftService"
VERIFIER_SERVICE = "specmesh.v1.VerifierService"
ROUTER_SERVICE = "specmesh.v1.RouterService"
"""Full names, as health, permissions and reflection know them."""

PEER_METADATA_KEY = "specmesh-peer"
"""Metadata of the Verify stream: the same value as `VerifyOpenHeader.peer`."""


class Purpose(IntEnum):
    """Third word of the Philox counter: what a number is for. Never shared (specification 1.4)."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    BONUS = 3
    COUPLED = 4
