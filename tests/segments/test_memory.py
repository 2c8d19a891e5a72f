"""The memory adapter in a simulation: virtual time, no threads, several daemons on one disk, and fast."""

import asyncio
import threading
import time

from scalable_topics.model.positions import Sentinel
from scalable_topics.segments.memory import MemoryDisk, memory_segments
from scalable_topics.segments.port import EXCLUSIVE
from tests.segments.worlds import address, call, messages, receive_all, stamp
from tests.virtual_time import run_virtual


async def simulation(segments: int) -> float:
    """What a seed does: segments made, written, read, terminated, drained and deleted by two daemons."""
    disk = MemoryDisk()
    leader, owner = memory_segments(disk), memory_segments(disk)
    for number in range(segments):
        await leader.create(address(number), stamp(number), ["s"], call())
        served = await owner.serve(address(number), owner_term=1)
        await served.append(messages(10))
        attachment = await served.attach("s", "c", EXCLUSIVE, generation=1)
        attachment.permit(20)
        await receive_all(attachment, 10)
        await asyncio.sleep(3_600)
        await leader.terminate(address(number), call())
        ending = asyncio.create_task(attachment.receive())
        await asyncio.sleep(1)
        await attachment.ack_through((0, 9))
        assert await ending == ()
        assert (await leader.describe(address(number))).is_drained("s")
        assert (await served.read(Sentinel.EARLIEST))[0].published_at_ms > 0
        await leader.delete(address(number), call())
    for store in (leader, owner):
        await store.close()
    return asyncio.get_running_loop().time()


def test_a_seed_is_quick_and_needs_no_thread() -> None:
    before = threading.active_count()
    started = time.perf_counter()

    ended_at = run_virtual(simulation(50))

    assert ended_at > 50 * 3_600
    assert threading.active_count() == before
    assert time.perf_counter() - started < 2, "600 calls; some 50 ms on a quiet machine"
