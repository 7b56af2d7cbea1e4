"""Whether a service that introduces itself may take part (pure). What does not fit is refused, and said why."""

from dataclasses import dataclass

import numpy as np

from specmesh.runtime.contract import CONTRACT_VERSION
from specmesh.runtime.types import ServiceInfo


@dataclass(frozen=True, slots=True)
class Target:
    """The model that this router serves, as its first verifier described it."""

    info: ServiceInfo
    name: str
    eos_token_ids: frozenset[int]
    fingerprint: str


def contract_fault(info: ServiceInfo) -> str:
    """Why a service of this contract cannot work with this router; empty when it can."""
    if info.contract_version == CONTRACT_VERSION:
        return ""
    return f"speaks contract {info.contract_version}, this router {CONTRACT_VERSION}"


def needs_vocabulary(info: ServiceInfo, target: ServiceInfo) -> bool:
    """Whether the digests leave open if both mean the same by an id."""
    differ = info.tokenizer_digest != target.tokenizer_digest
    return bool(info.vocabulary_size) and differ and not contract_fault(info)


def draft_fault(info: ServiceInfo, target: ServiceInfo) -> str:
    """Why this draft cannot propose for this target; empty when it can.

    Equal tokenizer digests settle it. Else the vocabularies are compared by the hash of each piece, and the first id
    that means something else is named. Heads may be padded; real vocabularies may not differ.
    """
    fault = contract_fault(info)
    if fault or not info.vocabulary_size:  # ids have no meaning to a lookup: any vocabulary does
        return fault
    if (info.tokenizer_digest, info.vocabulary_size) == (target.tokenizer_digest, target.vocabulary_size):
        return ""
    return _vocabulary_fault(info, target)


def _vocabulary_fault(info: ServiceInfo, target: ServiceInfo) -> str:
    ours, theirs = (np.frombuffer(each.vocabulary_hashes, dtype="<u4") for each in (target, info))
    common = min(len(ours), len(theirs))
    differing = np.flatnonzero(ours[:common] != theirs[:common])
    if len(differing):
        return f"token id {differing[0]} means another piece than in the target's vocabulary"
    if info.vocabulary_size != target.vocabulary_size:
        first = min(info.vocabulary_size, target.vocabulary_size)
        return f"vocabulary of {info.vocabulary_size} against the target's {target.vocabulary_size}: first id {first}"
    return "" if common else "another tokenizer, and no vocabulary to compare"
