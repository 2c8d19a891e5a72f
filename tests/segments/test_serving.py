"""What the daemon that serves a segment may rely on, of every adapter."""

import asyncio

import pytest

from scalable_topics.model.errors import CapReached, InvalidArgument, NotFound, TooLarge, WrongState
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.hashing import bucket_hash, raw_hash
from scalable_topics.model.positions import Sentinel
from scalable_topics.segments import log
from scalable_topics.segments.errors import Detached, Fenced, OutOfOrder, StaleGeneration
from scalable_topics.segments.port import (
    EXCLUSIVE,
    MAX_MESSAGE_BYTES,
    NOTHING,
    Appended,
    ConnectedProducer,
    Message,
    PublishedFrom,
    ServedSegment,
    Shared,
    Slice,
)
from scalable_topics.segments.store import Segments
from tests.segments.conftest import Open
from tests.segments.worlds import (
    address,
    at,
    call,
    entries_of,
    message,
    messages,
    nothing_comes,
    receive_all,
    stamp,
)

LOW, HIGH = Slice(HashRange(0, 0x7FFF)), Slice(HashRange(0x8000, 0xFFFF))


async def opened(store: Segments, *subscriptions: str, owner_term: int = 1) -> ServedSegment:
    await store.create(address(), stamp(), subscriptions, call(), must_be_empty=False)
    return await store.serve(address(), owner_term=owner_term)


async def test_a_repeated_sequence_answers_its_former_position(store: Segments, reopen: Open) -> None:
    served = await opened(store)

    assert await served.append(messages(3)) == (Appended((0, 0)), Appended((0, 1)), Appended((0, 2)))
    assert await served.append([message(1), message(2)]) == (Appended((0, 1), True), Appended((0, 2), True))
    assert await served.append([message(7), message(7)]) == (Appended((0, 3)), Appended((0, 3), True))
    assert await served.append([message(0, producer="q")]) == (Appended((0, 4)),)
    again = await (await reopen()).serve(address(), owner_term=2)
    assert await again.append([message(7), message(8)]) == (Appended((0, 3), True), Appended((0, 5)))


async def test_a_sequence_that_was_passed_over_is_refused_not_swallowed(store: Segments) -> None:
    served = await opened(store)
    await served.append([message(1), message(5)])

    for late in ([message(0)], [message(3)], [message(6), message(3)], [message(9), message(8)]):
        with pytest.raises(OutOfOrder):
            await served.append(late)
    assert (await store.describe(address())).last == (0, 1)


async def test_messages_come_back_whole_and_in_order(store: Segments, clock_ms: list[int]) -> None:
    served = await opened(store)
    whole = Message(
        payload=b"\0\xff",
        producer="p",
        sequence=0,
        key="ключ",
        ordering_key=b"\x80",
        key_hash=raw_hash(b"\x80"),
        properties={"a": "b"},
        event_time_ms=7,
    )
    await served.append([whole, Message(payload=b"")])
    clock_ms[0] -= 500  # the wall clock steps back; publish times do not
    await served.append([message(1)])
    clock_ms[0] += 2_000
    await served.append([message(2)])

    stored = await served.read(Sentinel.EARLIEST)

    assert [entry.position for entry in stored] == at(0, 1, 2, 3)
    assert [entry.message for entry in stored[:2]] == [whole, Message(payload=b"")]
    assert [entry.published_at_ms for entry in stored] == [1_000_000, 1_000_000, 1_000_000, 1_001_500]
    assert [entry.position for entry in await served.read((0, 1), max_entries=2)] == at(1, 2)
    assert [entry.position for entry in await served.read(PublishedFrom(1_000_001))] == at(3)
    assert await served.read(Sentinel.LATEST) == ()


async def test_what_no_store_could_keep_is_refused_before_it_is_asked(store: Segments) -> None:
    served = await opened(store)

    with pytest.raises(TooLarge):
        await served.append([Message(payload=bytes(MAX_MESSAGE_BYTES + 1))])
    for wrong in (
        Message(payload=b"", producer="p", sequence=-1),
        Message(payload=b"", producer="p", sequence=2**63),
        Message(payload=b"", sequence=1),
        Message(payload=b"", key_hash=2**32),
        Message(payload=b"", event_time_ms=2**63),
        Message(payload=b"", key="\ud800"),
        Message(payload=b"", properties={"a": "\ud800"}),
    ):
        with pytest.raises(InvalidArgument):
            await served.append([message(0), wrong])
    assert (await store.describe(address())).is_empty


async def test_a_segment_that_has_no_room_left_says_so(store: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_ENTRIES", 2)
    served = await opened(store)
    await served.append(messages(1))

    with pytest.raises(CapReached, match="split"):
        await served.append(messages(2, start=1))
    await served.append(messages(1, start=1))


async def test_waiting_for_what_comes_next(store: Segments) -> None:
    served = await opened(store)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(served.wait_beyond(NOTHING))
        second = tasks.create_task(served.wait_beyond((0, 0)))
        await asyncio.sleep(0)
        await served.append([message(0)])
        assert await first
        await store.terminate(address(), call())
        assert not await second
    assert await served.wait_beyond(NOTHING)


async def test_pitfall_84_closing_a_consumer_acknowledges_nothing(store: Segments) -> None:
    served = await opened(store, "s")
    await served.append(messages(3))
    first = await served.attach("s", "a", Shared())
    first.permit(3)
    assert entries_of(await receive_all(first, 3)) == [0, 1, 2]
    await first.ack(at(1))

    await first.close()

    second = await served.attach("s", "b", Shared())
    second.permit(9)
    got = await receive_all(second, 2)
    assert [(delivery.entry.position[1], delivery.redeliveries) for delivery in got] == [(0, 1), (2, 1)]
    with pytest.raises(Detached):
        await first.ack(at(0))


async def test_permits_bound_what_is_handed_out(store: Segments) -> None:
    served = await opened(store, "s")
    attachment = await served.attach("s", "a", EXCLUSIVE)
    await served.append(messages(5))

    assert await nothing_comes(attachment)
    attachment.permit(2)
    assert entries_of(await receive_all(attachment, 2)) == [0, 1]
    assert await nothing_comes(attachment)
    attachment.permit(2)
    assert entries_of(await attachment.receive(1)) == [2]
    assert entries_of(await attachment.receive(1)) == [3]
    with pytest.raises(InvalidArgument):
        attachment.permit(-1)


async def test_a_consumer_that_waits_is_told_of_what_is_appended(store: Segments) -> None:
    served = await opened(store, "s")
    attachment = await served.attach("s", "a", EXCLUSIVE)
    attachment.permit(10)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(receive_all(attachment, 3))
        for number in range(3):
            await asyncio.sleep(0)
            await served.append([message(number)])
        assert entries_of(await waiting) == [0, 1, 2]


async def test_a_nack_is_delivered_again_to_whoever_may_have_it(store: Segments) -> None:
    served = await opened(store, "s")
    await served.append(messages(2))
    attachment = await served.attach("s", "a", EXCLUSIVE)
    attachment.permit(3)
    await receive_all(attachment, 2)

    attachment.nack(at(0, 5))

    [again] = await attachment.receive()
    assert (again.entry.position, again.redeliveries) == ((0, 0), 1)


async def test_a_shared_subscription_spreads_over_its_consumers(store: Segments) -> None:
    served = await opened(store, "s")
    consumers = [await served.attach("s", name, Shared()) for name in "ab"]
    for consumer in consumers:
        consumer.permit(3)
    await served.append(messages(6))

    got = [entries_of(await receive_all(consumer, 3)) for consumer in consumers]

    assert sorted(got[0] + got[1]) == list(range(6))


async def test_slices_get_their_own_keys_in_order_and_do_not_wait_for_each_other(store: Segments) -> None:
    served = await opened(store, "s")
    low = await served.attach("s", "a", LOW, generation=1)
    high = await served.attach("s", "b", HIGH, generation=1)
    sent = messages(40)
    await served.append(sent)
    in_high = [number for number in range(40) if bucket_hash(raw_hash(f"key-{number}")) >= 0x8000]
    in_low = sorted(set(range(40)) - set(in_high))

    high.permit(100)  # the lower one takes nothing at all yet
    assert entries_of(await receive_all(high, len(in_high))) == in_high
    low.permit(100)
    assert entries_of(await receive_all(low, len(in_low))) == in_low


async def test_pitfall_35_a_higher_generation_takes_over_and_the_former_holder_is_refused_everything(
    store: Segments,
) -> None:
    served = await opened(store, "s")
    await served.append(messages(3))
    old = await served.attach("s", "a", EXCLUSIVE, generation=3)
    old.permit(3)
    await receive_all(old, 3)

    new = await served.attach("s", "b", EXCLUSIVE, generation=4)

    with pytest.raises(StaleGeneration):
        await old.ack(at(0))
    with pytest.raises(StaleGeneration):
        await old.receive()
    with pytest.raises(StaleGeneration):
        old.permit(1)
    new.permit(9)
    assert entries_of(await receive_all(new, 3)) == [0, 1, 2]


async def test_pitfall_30_a_stale_generation_is_refused_also_by_the_next_owner(store: Segments, reopen: Open) -> None:
    served = await opened(store, "s")
    await (await served.attach("s", "a", LOW, generation=5)).close()
    taken_over = await (await reopen()).serve(address(), owner_term=2)

    with pytest.raises(StaleGeneration):
        await taken_over.attach("s", "z", EXCLUSIVE, generation=4)
    with pytest.raises(StaleGeneration):
        await taken_over.attach("s", "z", LOW, generation=5)  # the same generation is one consumer's only
    await taken_over.attach("s", "b", HIGH, generation=1)  # slices that do not overlap do not fence each other
    await taken_over.attach("s", "a", LOW, generation=5)
    with pytest.raises(StaleGeneration):
        await taken_over.attach("s", "b", EXCLUSIVE, generation=0)


async def test_the_same_consumer_replaces_its_former_attachment(store: Segments) -> None:
    served = await opened(store, "s")
    await served.append(messages(1))
    former = await served.attach("s", "a", EXCLUSIVE, generation=3)
    former.permit(1)
    await receive_all(former, 1)

    again = await served.attach("s", "a", EXCLUSIVE, generation=3)

    again.permit(1)
    assert entries_of(await receive_all(again, 1)) == [0]
    with pytest.raises(StaleGeneration):
        await former.ack(at(0))


async def test_modes_do_not_mix_and_unmanaged_consumers_take_over_from_nobody(store: Segments) -> None:
    served = await opened(store, "s", "t")
    exclusive = await served.attach("s", "a", EXCLUSIVE)
    await served.attach("t", "a", Shared())

    for subscription, mode in (("s", Shared()), ("s", EXCLUSIVE), ("t", EXCLUSIVE)):
        with pytest.raises(WrongState, match="attached"):
            await served.attach(subscription, "b", mode)
    await exclusive.close()
    await served.attach("s", "b", EXCLUSIVE)
    with pytest.raises(NotFound):
        await served.attach("nobody", "a", Shared())
    with pytest.raises(InvalidArgument):
        await served.attach("s", "b", EXCLUSIVE, generation=-1)


async def test_a_cumulative_ack_is_for_exclusive_consumers(store: Segments) -> None:
    served = await opened(store, "s", "t")
    await served.append(messages(5))
    alone = await served.attach("s", "a", EXCLUSIVE)
    sliced = await served.attach("t", "a", LOW, generation=1)
    alone.permit(2)
    await receive_all(alone, 2)

    await alone.ack_through((0, 2))

    assert (await store.describe(address())).subscriptions["s"].mark_delete == (0, 2)
    alone.permit(9)
    assert entries_of(await receive_all(alone, 2)) == [3, 4]
    with pytest.raises(InvalidArgument):
        await sliced.ack_through((0, 1))
    with pytest.raises(InvalidArgument):
        await alone.ack_through((0, 5))
    with pytest.raises(InvalidArgument):
        await alone.ack(at(0, 5))


async def test_single_acknowledgements_are_kept_and_become_the_mark(store: Segments, reopen: Open) -> None:
    served = await opened(store, "s")
    await served.append(messages(6))
    attachment = await served.attach("s", "a", Shared())
    attachment.permit(6)
    await receive_all(attachment, 6)

    await attachment.ack(at(4, 1, 2))
    await attachment.ack(at(2))

    facts = (await store.describe(address())).subscriptions["s"]
    assert (facts.mark_delete, facts.backlog) == (NOTHING, 3)
    taken_over = await (await reopen()).serve(address(), owner_term=2)
    again = await taken_over.attach("s", "a", Shared())
    again.permit(9)
    assert entries_of(await receive_all(again, 3)) == [0, 3, 5]
    await again.ack(at(0))
    assert (await store.describe(address())).subscriptions["s"].mark_delete == (0, 2)
    await again.ack(at(3))
    assert (await store.describe(address())).subscriptions["s"].mark_delete == (0, 4)


async def test_pitfall_83_a_terminated_segment_takes_acks_and_ends_only_when_all_is_acknowledged(
    store: Segments,
) -> None:
    served = await opened(store, "s")
    await served.append(messages(2))
    attachment = await served.attach("s", "a", EXCLUSIVE, generation=1)
    attachment.permit(10)
    await store.terminate(address(), call())

    assert entries_of(await receive_all(attachment, 2)) == [0, 1]
    assert await nothing_comes(attachment)
    await attachment.ack(at(1))
    assert await nothing_comes(attachment), "pitfall 88: unacknowledged is not the end"
    await attachment.ack(at(0))
    assert await attachment.receive() == ()
    assert (await store.describe(address())).is_drained("s")


async def test_pitfall_64_what_the_leader_acknowledges_ends_the_segment_for_its_consumers_too(store: Segments) -> None:
    served = await opened(store, "s")
    await served.append(messages(2))
    attachment = await served.attach("s", "a", EXCLUSIVE, generation=1)
    attachment.permit(5)
    await receive_all(attachment, 2)
    await store.terminate(address(), call())
    waiting = asyncio.create_task(attachment.receive())

    await store.advance(address(), "s", (0, 1), call())

    async with asyncio.timeout(5):
        assert await waiting == ()


async def test_a_seek_forgets_single_acknowledgements_for_good(store: Segments) -> None:
    served = await opened(store, "s")
    await served.append(messages(6))
    await (await served.attach("s", "a", Shared())).ack(at(2, 3))
    await store.seek(address(), "s", Sentinel.EARLIEST, call("seek"))
    again = await served.attach("s", "a", Shared())

    await again.ack(at(5))
    await again.ack(at(0, 1))

    facts = (await store.describe(address())).subscriptions["s"]
    assert (facts.mark_delete, facts.backlog) == ((0, 1), 3)


async def test_a_slice_ends_when_its_own_part_is_done(store: Segments) -> None:
    served = await opened(store, "s")
    await served.append(messages(20))
    await store.terminate(address(), call())
    low = await served.attach("s", "a", LOW, generation=1)
    high = await served.attach("s", "b", HIGH, generation=1)
    low.permit(20)
    high.permit(20)

    mine = []
    async with asyncio.timeout(10):
        while deliveries := await low.receive():
            mine += entries_of(deliveries)
            await low.ack([delivery.entry.position for delivery in deliveries])

    assert mine == [number for number in range(20) if bucket_hash(raw_hash(f"key-{number}")) < 0x8000]
    assert not (await store.describe(address())).is_drained("s")
    assert len(await high.receive()) == 20 - len(mine)


async def test_pitfall_23_the_backlog_of_a_terminated_segment_is_delivered(store: Segments, reopen: Open) -> None:
    served = await opened(store, "s")
    await served.append(messages(3))
    await store.terminate(address(), call())
    taken_over = await (await reopen()).serve(address(), owner_term=2)

    late = await taken_over.attach("s", "a", EXCLUSIVE, generation=1)
    late.permit(10)
    assert entries_of(await receive_all(late, 3)) == [0, 1, 2]
    await late.ack_through((0, 2))
    assert await late.receive() == ()


async def test_a_former_owner_changes_nothing_and_learns_why(store: Segments, reopen: Open) -> None:
    former = await opened(store, "s")
    await former.append(messages(2))
    attachment = await former.attach("s", "a", EXCLUSIVE, generation=1)
    attachment.permit(1)
    await receive_all(attachment, 1)

    other = await reopen()
    taken_over = await other.serve(address(), owner_term=2)

    with pytest.raises(Fenced):
        await attachment.ack(at(0))
    assert (await store.stats(address())).rates is None, "it no longer takes itself for the owner"
    with pytest.raises(Fenced):
        await former.append([message(2)])
    with pytest.raises(Fenced):
        await former.attach("s", "a", EXCLUSIVE, generation=2)
    with pytest.raises(Fenced):
        await former.read(Sentinel.EARLIEST)
    with pytest.raises(Fenced):
        await store.serve(address(), owner_term=1)
    assert await taken_over.append([message(1), message(2)]) == (Appended((0, 1), True), Appended((0, 2)))
    assert (await other.describe(address())).subscriptions["s"].backlog == 3


async def test_whoever_waits_is_told_when_the_segment_is_taken_over_or_deleted(store: Segments, reopen: Open) -> None:
    served = await opened(store, "s", "t")
    waiting = await served.attach("s", "a", EXCLUSIVE)
    waiting.permit(1)
    dropped = await served.attach("t", "a", EXCLUSIVE)
    first, second = asyncio.create_task(waiting.receive()), asyncio.create_task(dropped.receive())
    await asyncio.sleep(0.01)

    await store.delete_subscription(address(), "t", call())
    await asyncio.wait([second], timeout=5)
    assert isinstance(second.exception(), NotFound)
    assert not first.done()
    await (await reopen()).serve(address(), owner_term=2)
    await asyncio.wait([first], timeout=5)
    assert isinstance(first.exception(), Fenced)


async def test_retention_drops_only_what_everybody_acknowledged_and_is_old_enough(
    store: Segments, clock_ms: list[int]
) -> None:
    served = await opened(store, "s", "t")
    await served.append(messages(3))
    clock_ms[0] += 10_000
    await served.append(messages(3, start=3))
    await store.advance(address(), "s", (0, 5), call())
    assert await served.prune(retention_seconds=0) == 0, "t has acknowledged nothing"
    await store.advance(address(), "t", (0, 4), call())

    assert await served.prune(retention_seconds=5) == 3
    assert await served.prune(retention_seconds=0, max_entries=1) == 1
    assert await served.prune(retention_seconds=0) == 1

    assert [entry.position for entry in await served.read(Sentinel.EARLIEST)] == at(5)
    facts = await store.describe(address())
    assert (facts.last, facts.subscriptions["t"].backlog) == ((0, 5), 1)
    assert (await store.stats(address())).messages == 1
    assert (await store.create_subscription(address(), "new", call())).backlog == 1
    assert (await store.seek(address(), "s", Sentinel.EARLIEST, call("seek"))).backlog == 1
    assert await served.append([message(0), message(5)]) == (Appended(None, True), Appended((0, 5), True))


async def test_pitfall_63_without_a_subscription_nothing_is_pruned(store: Segments) -> None:
    served = await opened(store)
    await served.append(messages(2))

    assert await served.prune(retention_seconds=0) == 0


async def test_pitfall_79_each_connected_producer_is_seen_with_its_own_metadata(store: Segments) -> None:
    served = await opened(store)
    new, old = ConnectedProducer("p", {"v": "5"}), ConnectedProducer("p", {})

    for producer in (new, old, new):
        served.connect_producer(producer)
    served.disconnect_producer(new)

    assert (await store.stats(address())).producers == (old, new)
    served.disconnect_producer(ConnectedProducer("nobody"))


async def test_serving_ends_when_it_is_closed_or_opened_again(store: Segments) -> None:
    first = await opened(store, "s")
    attachment = await first.attach("s", "a", EXCLUSIVE)
    second = await store.serve(address(), owner_term=1)

    with pytest.raises(Detached):
        await first.append([message(0)])
    with pytest.raises(Detached):
        await attachment.receive()
    await second.append([message(0)])
    await second.close()
    assert (await store.stats(address())).rates is None


async def test_a_receive_that_is_cancelled_loses_nothing(store: Segments) -> None:
    served = await opened(store, "s")
    attachment = await served.attach("s", "a", EXCLUSIVE)
    attachment.permit(10)
    assert await nothing_comes(attachment)
    for number in range(5):
        waiting = asyncio.create_task(attachment.receive())
        await asyncio.sleep(0)
        await served.append([message(number)])
        waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            attachment.nack([delivery.entry.position for delivery in waiting.result()])

    attachment.permit(10)
    assert sorted(entries_of(await receive_all(attachment, 5))) == list(range(5))
