import asyncio

import pytest

from specmesh.runtime.errors import Overloaded
from specmesh.runtime.streams import FrameQueue


def queue(**limits: int) -> FrameQueue[bytes]:
    return FrameQueue(size_of=len, **limits)


async def test_all_that_is_queued_leaves_as_one_frame_in_order() -> None:
    frames = queue()
    for entry in (b"a", b"b", b"c"):
        frames.put(entry)
    assert await frames.get() == [b"a", b"b", b"c"]


async def test_a_reader_waits_for_the_first_entry() -> None:
    frames = queue()
    reading = asyncio.create_task(frames.get())
    await asyncio.sleep(0)
    assert not reading.done()
    frames.put(b"a")
    assert await reading == [b"a"]


async def test_a_frame_is_bounded_by_entries_and_by_bytes() -> None:
    frames = queue(max_frame_entries=2)
    for entry in (b"a", b"b", b"c"):
        frames.put(entry)
    assert [await frames.get(), await frames.get()] == [[b"a", b"b"], [b"c"]]
    frames = queue(max_frame_bytes=3)
    for entry in (b"aa", b"b", b"c", b"long one", b"d"):
        frames.put(entry)
    assert [await frames.get() for _ in range(4)] == [[b"aa", b"b"], [b"c"], [b"long one"], [b"d"]]


async def test_a_peer_that_does_not_read_is_overload_by_entries_and_by_bytes() -> None:
    frames = queue(max_entries=2)
    frames.put(b"a")
    frames.put(b"b")
    with pytest.raises(Overloaded, match="2 entries"):
        frames.put(b"c")
    await frames.get()
    frames.put(b"c")
    frames = queue(max_bytes=4)
    frames.put(b"aaa")
    with pytest.raises(Overloaded, match="4 bytes"):
        frames.put(b"bb")


async def test_close_lets_the_reader_have_what_is_left_and_ends_it() -> None:
    frames = queue()
    frames.put(b"a")
    frames.close()
    frames.put(b"late")
    assert [frame async for frame in frames.frames()] == [[b"a"]]
    assert await frames.get() == []


async def test_close_wakes_a_waiting_reader() -> None:
    frames = queue()
    reading = asyncio.create_task(frames.get())
    await asyncio.sleep(0)
    frames.close()
    assert await asyncio.wait_for(reading, 1) == []
