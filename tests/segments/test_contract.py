"""What the leader may rely on, of every adapter. Given, when, then."""

import pytest

from scalable_topics.model.errors import InvalidArgument, NotFound, Unavailable, WrongState
from scalable_topics.model.positions import Sentinel
from scalable_topics.segments.errors import Detached, ForeignStamp, StaleTerm, Terminated, Tombstoned, Unusable
from scalable_topics.segments.port import (
    EXCLUSIVE,
    NOTHING,
    PublishedFrom,
    SegmentData,
    SegmentStore,
    ServedSegment,
    StartAt,
    SubscriptionFacts,
)
from scalable_topics.segments.store import Segments
from tests.segments.conftest import Open
from tests.segments.worlds import (
    INCARNATION,
    TOPIC,
    address,
    at,
    call,
    entries_of,
    message,
    messages,
    receive_all,
    stamp,
)

OTHER_LIFE = "f" * 16


async def filled(store: Segments, count: int, *subscriptions: str) -> ServedSegment:
    await store.create(address(), stamp(), subscriptions, call())
    served = await store.serve(address(), owner_term=1)
    await served.append(messages(count))
    return served


async def test_the_adapters_are_what_the_port_says(store: Segments) -> None:
    as_store: SegmentStore = store
    as_data: SegmentData = store

    assert await as_store.list() == ()
    with pytest.raises(NotFound):
        await as_data.serve(address(), owner_term=1)


async def test_pitfall_02_create_and_terminate_may_be_repeated(store: Segments) -> None:
    first = await store.create(address(), stamp(), ["s"], call())
    again = await store.create(address(), stamp(), ["s"], call(term=2))

    assert first == again
    assert first.is_empty
    assert first.subscriptions == {"s": SubscriptionFacts(NOTHING, 0)}
    assert await store.terminate(address(), call("op-2", term=2)) == NOTHING
    assert await store.terminate(address(), call("op-2", term=3)) == NOTHING


async def test_pitfall_03_a_terminated_segment_stays_terminated_when_reopened(store: Segments, reopen: Open) -> None:
    served = await filled(store, 3, "s")
    assert await store.terminate(address(), call()) == (0, 2)
    with pytest.raises(Terminated):
        await served.append([message(3)])
    await store.close()

    other = await reopen()
    taken_over = await other.serve(address(), owner_term=2)
    with pytest.raises(Terminated):
        await taken_over.append([message(3)])
    assert (await other.describe(address())).terminated == (0, 2)


async def test_an_append_that_was_stored_before_termination_is_answered_not_refused(store: Segments) -> None:
    served = await filled(store, 3)
    await store.terminate(address(), call())

    [answer] = await served.append([message(2)])

    assert (answer.position, answer.duplicate) == ((0, 2), True)


async def test_pitfall_01_a_segment_of_another_operation_is_not_accepted(store: Segments) -> None:
    await store.create(address(), stamp(operation="op-1"), [], call("op-1"))

    with pytest.raises(ForeignStamp):
        await store.create(address(), stamp(operation="op-2"), [], call("op-2"))
    with pytest.raises(InvalidArgument):
        await store.create(address(), stamp(incarnation=OTHER_LIFE), [], call())


async def test_a_preparing_child_must_be_empty_and_not_terminated(store: Segments) -> None:
    await filled(store, 1)

    with pytest.raises(Unusable, match="holds 1 message"):
        await store.create(address(), stamp(), [], call())
    assert (await store.create(address(), stamp(), [], call(), must_be_empty=False)).last == (0, 0)
    await store.terminate(address(), call())
    with pytest.raises(Unusable, match="terminated"):
        await store.create(address(), stamp(), [], call(), must_be_empty=False)


async def test_pitfall_08_a_late_create_does_not_bring_a_deleted_segment_back(store: Segments, reopen: Open) -> None:
    await store.create(address(), stamp(), ["s"], call())
    await store.delete(address(), call("op-2"))

    for each in (store, await reopen()):
        with pytest.raises(Tombstoned):
            await each.create(address(), stamp(), ["s"], call())
    assert await store.list() == ()


async def test_pitfall_08_a_create_that_arrives_after_its_delete_makes_nothing(store: Segments) -> None:
    await store.delete(address(), call("op-2", term=2))

    with pytest.raises(StaleTerm):
        await store.create(address(), stamp(), [], call(term=1))
    with pytest.raises(Tombstoned):
        await store.create(address(), stamp(), [], call(term=2))


async def test_pitfall_09_accepting_a_segment_gives_it_the_cursors_it_lacks(store: Segments) -> None:
    await store.create(address(), stamp(), ["a"], call())

    facts = await store.create(address(), stamp(), ["a", "b"], call())

    assert sorted(facts.subscriptions) == ["a", "b"]


async def test_pitfall_10_a_delete_may_be_repeated(store: Segments) -> None:
    served = await filled(store, 2, "s")

    await store.delete(address(), call())
    await store.delete(address(), call(term=2))

    with pytest.raises(NotFound):
        await store.describe(address())
    with pytest.raises(NotFound):
        await served.append([message(2)])


async def test_pitfall_15_a_deposed_leader_changes_nothing(store: Segments) -> None:
    await filled(store, 2, "s")
    await store.create_subscription(address(), "t", call(term=7))
    before = await store.describe(address())

    for late in (
        store.create(address(), stamp(), ["u"], call(term=6), must_be_empty=False),
        store.terminate(address(), call(term=6)),
        store.delete(address(), call(term=6)),
        store.create_subscription(address(), "u", call(term=6)),
        store.delete_subscription(address(), "s", call(term=6)),
        store.seek(address(), "s", Sentinel.LATEST, call(term=6)),
        store.skip_all(address(), "s", call(term=6)),
        store.advance(address(), "s", (0, 1), call(term=6)),
    ):
        with pytest.raises(StaleTerm):
            await late
    assert await store.describe(address()) == before


async def test_another_life_of_the_topic_is_never_touched(store: Segments) -> None:
    await filled(store, 1, "s")

    for foreign in (
        store.terminate(address(), call(term=9, incarnation=OTHER_LIFE)),
        store.delete(address(), call(term=9, incarnation=OTHER_LIFE)),
        store.skip_all(address(), "s", call(term=9, incarnation=OTHER_LIFE)),
    ):
        with pytest.raises(ForeignStamp):
            await foreign
    await store.terminate(address(), call(term=2))  # the foreign term was not noted


async def test_pitfall_14_two_lives_of_one_name_are_two_segments(store: Segments) -> None:
    await filled(store, 2, "s")

    await store.create(
        address(incarnation=OTHER_LIFE), stamp(incarnation=OTHER_LIFE), ["s"], call(incarnation=OTHER_LIFE)
    )

    assert (await store.describe(address(incarnation=OTHER_LIFE))).is_empty
    assert (await store.describe(address())).last == (0, 1)
    assert [one.stamp.incarnation for one in await store.list() if one.stamp] == [INCARNATION, OTHER_LIFE]


async def test_pitfall_05_a_subscription_starts_where_it_is_told_and_stays_where_it_is(store: Segments) -> None:
    await filled(store, 5)

    assert (await store.create_subscription(address(), "first", call())).backlog == 5
    assert (await store.create_subscription(address(), "last", call(), at=Sentinel.LATEST)).backlog == 0
    assert await store.create_subscription(address(), "third", call(), at=(0, 2)) == SubscriptionFacts((0, 1), 3)
    assert (await store.create_subscription(address(), "last", call("op-9"))).backlog == 0
    await store.delete_subscription(address(), "last", call())
    await store.delete_subscription(address(), "last", call())
    assert sorted((await store.describe(address())).subscriptions) == ["first", "third"]


async def test_pitfall_91_a_seek_on_an_empty_segment_is_fine(store: Segments) -> None:
    await store.create(address(), stamp(), ["s"], call())

    starts: tuple[StartAt, ...] = (Sentinel.EARLIEST, Sentinel.LATEST, (0, 5), PublishedFrom(7))
    for number, to in enumerate(starts):
        assert await store.seek(address(), "s", to, call(f"seek-{number}")) == SubscriptionFacts(NOTHING, 0)


async def test_a_seek_moves_both_ways_and_obeys_each_operation_once(store: Segments, clock_ms: list[int]) -> None:
    served = await filled(store, 2, "s")
    clock_ms[0] += 1_000
    await served.append(messages(2, start=2))

    assert (await store.skip_all(address(), "s", call("a"))).backlog == 0
    assert (await store.seek(address(), "s", (0, 1), call("b"))).backlog == 3
    assert (await store.seek(address(), "s", PublishedFrom(clock_ms[0]), call("c"))).backlog == 2
    assert (await store.seek(address(), "s", Sentinel.EARLIEST, call("d"))).backlog == 4
    assert (await store.skip_all(address(), "s", call("a"))).backlog == 4  # a late copy skips nothing
    with pytest.raises(NotFound):
        await store.seek(address(), "nobody", (0, 1), call("e"))


async def test_a_seek_detaches_and_voids_what_was_delivered_before(store: Segments) -> None:
    served = await filled(store, 3, "s")
    before = await served.attach("s", "c", EXCLUSIVE, generation=1)
    before.permit(10)
    await receive_all(before, 3)

    await store.seek(address(), "s", (0, 1), call("seek"))

    with pytest.raises(Detached):
        await before.ack(at(0, 1, 2))
    with pytest.raises(Detached):
        await before.receive()
    after = await served.attach("s", "c", EXCLUSIVE, generation=1)
    after.permit(10)
    assert entries_of(await receive_all(after, 2)) == [1, 2]


async def test_pitfall_64_a_checkpoint_group_has_a_cursor_that_only_advances(store: Segments) -> None:
    await filled(store, 4, "s")

    assert (await store.advance(address(), "s", (0, 2), call())).backlog == 1
    assert (await store.advance(address(), "s", (0, 0), call())).mark_delete == (0, 2)
    with pytest.raises(InvalidArgument):
        await store.advance(address(), "s", (0, 4), call())
    with pytest.raises(InvalidArgument):
        await store.advance(address(), "s", (1, 0), call())
    await store.terminate(address(), call())
    await store.advance(address(), "s", (0, 3), call())
    assert (await store.describe(address())).is_drained("s")


async def test_pitfall_67_not_there_is_never_drained(store: Segments) -> None:
    with pytest.raises(NotFound):
        await store.describe(address())
    await store.create(address(), stamp(), ["s"], call())

    facts = await store.describe(address())

    assert not facts.is_drained("s"), "empty, and still open"
    await store.terminate(address(), call())
    facts = await store.describe(address())
    assert facts.is_drained("s"), "an empty segment that has ended is drained"
    with pytest.raises(NotFound):
        facts.is_drained("nobody")
    for missing in (
        store.terminate(address(2), call()),
        store.create_subscription(address(2), "s", call()),
        store.delete_subscription(address(2), "s", call()),
        store.stats(address(2)),
    ):
        with pytest.raises(NotFound):
            await missing


async def test_pitfall_66_orphans_can_be_found_by_their_stamps(store: Segments) -> None:
    await store.create(address(1), stamp(1), [], call())
    await store.create(address(2), stamp(2), [], call())
    await store.terminate(address(2), call())
    await store.create(address(3), stamp(3), [], call())
    await store.delete(address(3), call())

    listed = await store.list("segment://tenant/ns/orders/")

    assert [(one.physical, one.stamp, one.terminated) for one in listed] == [
        (address(1).physical, stamp(1), False),
        (address(2).physical, stamp(2), True),
    ]
    assert await store.list("segment://tenant/ns/other/") == ()


async def test_nothing_is_begun_after_its_deadline(store: Segments) -> None:
    with pytest.raises(Unavailable, match="not begun"):
        await store.create(address(), stamp(), [], call(seconds=-1))
    assert await store.list() == ()
    with pytest.raises(InvalidArgument, match="deadline"):
        await store.create(address(), stamp(), [], call(seconds=11))
    with pytest.raises(InvalidArgument, match="term"):
        call(term=0)


async def test_a_tombstone_is_kept_longer_than_any_call_can_be_late(store: Segments, clock_ms: list[int]) -> None:
    await store.create(address(), stamp(), ["s"], call())
    await store.delete(address(), call())

    assert await store.forget_tombstones(older_than_seconds=60) == 0
    clock_ms[0] += 60_001
    assert await store.forget_tombstones(older_than_seconds=60) == 1
    with pytest.raises(InvalidArgument):
        await store.forget_tombstones(older_than_seconds=10)


async def test_stats_tell_what_is_stored_and_leave_unknown_what_only_the_owner_knows(
    store: Segments, reopen: Open
) -> None:
    served = await filled(store, 4, "s")
    attachment = await served.attach("s", "c", EXCLUSIVE)
    attachment.permit(3)
    await receive_all(attachment, 3)
    await attachment.ack(at(0))

    own = await store.stats(address())
    foreign = await (await reopen()).stats(address())

    assert own.rates is not None
    assert own.rates[0] > 0
    assert own.rates[2] > 0
    assert (own.messages, own.subscriptions["s"].backlog, own.subscriptions["s"].unacked) == (4, 3, 2)
    assert own.subscriptions["s"].consumers == ("c",)
    assert own.subscriptions["s"].backlog_bytes == round(own.storage_bytes * 3 / 4)
    assert foreign.rates is None
    assert (foreign.messages, foreign.storage_bytes) == (4, own.storage_bytes)


async def test_a_closed_store_is_unavailable(store: Segments) -> None:
    await store.close()

    with pytest.raises(Unavailable):
        await store.describe(address())
    with pytest.raises(Unavailable):
        await store.create(address(), stamp(), [], call())
    with pytest.raises(Unavailable):
        await store.list(str(TOPIC))


async def test_a_wrong_state_is_what_every_refusal_of_state_is(store: Segments) -> None:
    await filled(store, 1)
    await store.terminate(address(), call())

    with pytest.raises(WrongState, match="next one"):
        await store.create(address(), stamp(), [], call())
