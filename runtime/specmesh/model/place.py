"""Which of the processes that share a model this one is. No tensors here, so that a process knows it at once."""

import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

MEETING = "SPECMESH_RANKS_MEET_AT"
"""In the environment of ranks that rank 0 has started itself: HOST:PORT."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks find each other; rank 0 is `listening` there."""

    host: str
    port: int
    listening: socket.socket | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Rank of `size`, on the device `local_rank` of this machine. `meeting`: None where torchrun has arranged it."""

    rank: int
    size: int
    local_rank: int
    meeting: Meeting | None = None


def place_of(environ: Mapping[str, str], size: int) -> Place | None:
    """From RANK, WORLD_SIZE and LOCAL_RANK, as torchrun and rank 0 set them; None: nobody has given this process one.

    Raises ValueError when they do not fit `size`.
    """
    if size == 1 or "RANK" not in environ:
        return None
    try:
        rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank = int(environ.get("LOCAL_RANK", environ["RANK"]))
    except (KeyError, ValueError):
        raise ValueError("RANK, WORLD_SIZE and LOCAL_RANK must all be numbers when RANK is set") from None
    if world != size or not 0 <= rank < size:
        raise ValueError(f"{size} ranks are configured, and this process is rank {rank} of {world}")
    host, colon, port = environ.get(MEETING, "").rpartition(":")
    return Place(rank, size, local_rank, Meeting(host, int(port)) if colon else None)


def leave(status: int) -> NoReturn:
    """End a process that shares a model.

    Not by the interpreter's own end: there NCCL waits for ever for recorded forwards to give its communicator back.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
