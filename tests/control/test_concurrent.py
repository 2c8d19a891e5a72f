"""Many people ask for many things at once, of daemons that lead and of daemons that have just lost that, while answers
get lost. Afterwards everything that was answered must be explained by one order of what was done: replayed on a model,
it gives the very same layout.
"""

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from scalable_topics.control.controller import Request, TopicController, etag
from scalable_topics.control.led_topic import ControlSettings, Gone
from scalable_topics.control.phases import children
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.repository import Conflict, Deposed, Repository
from scalable_topics.metadata.store import Answer, Compare, Delete, Put, Write
from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.errors import (
    CapReached,
    InvalidArgument,
    NotFound,
    ScalableTopicsError,
    Unavailable,
    UnknownOutcome,
    WrongState,
)
from scalable_topics.model.layout import Replacements, SegmentLayout, initial_layout
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Outcome
from scalable_topics.model.record import TopicRecord, TopicState, decode_record
from scalable_topics.model.replacements import merge, rebucket, split
from scalable_topics.model.segment import segment_address
from scalable_topics.model.subscription import (
    InitialPosition,
    SubscriptionRecord,
    SubscriptionState,
    SubscriptionType,
)
from scalable_topics.segments.memory import memory_segments
from scalable_topics.segments.port import NOTHING
from tests.control.worlds import PATHS, TOPIC, Daemon, World, controller, created
from tests.virtual_time import run_virtual

SEEDS_AT_ONCE = int(os.environ.get("CONCURRENT_SEEDS", "15"))
SETTINGS = ControlSettings(gc_interval_seconds=15, retention_minutes=-1)
"""House-keeping goes on with what a caller has left half done; nothing is pruned."""
POLICY = AutoScalePolicy()
CALLERS, REQUESTS_EACH, ATTEMPTS = 5, 5, 4
BUSY_SECONDS, CALM_SECONDS = 40, 120


def now() -> float:
    return asyncio.get_running_loop().time()


class WatchedStore(MemoryStore):
    """Remembers every version of the topic's record, and every state of its subscriptions, with the time."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[float, TopicRecord]] = []
        self.subscriptions: defaultdict[str, list[tuple[float, SubscriptionState | None]]] = defaultdict(
            lambda: [(0.0, None)]
        )

    async def commit(self, writes: Sequence[Write], *, compares: Sequence[Compare] = ()) -> Answer:
        answer = await super().commit(writes, compares=compares)
        if answer.succeeded:
            for write in writes:
                self._remember(write)
        return answer

    def _remember(self, write: Write) -> None:
        if isinstance(write, Put) and write.key == PATHS.record(TOPIC):
            self.records.append((now(), decode_record(write.value, subject="record")))
        elif isinstance(write, Put | Delete) and (name := PATHS.subscription_of(TOPIC, write.key)) is not None:
            state = msgspec.json.decode(write.value, type=SubscriptionRecord).state if isinstance(write, Put) else None
            if self.subscriptions[name][-1][1] != state:
                self.subscriptions[name].append((now(), state))


class LossySegments:
    """A daemon's way to segments. In a storm calls are slow, and are lost before or after they are carried out."""

    def __init__(self, world: World) -> None:
        self._inner = memory_segments(world.disk, now_ms=world.now_ms)
        self.storm: random.Random | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            storm = self.storm
            if storm is None:
                return await method(*arguments, **named)
            await asyncio.sleep(storm.random() * 0.05)
            if storm.random() < 0.05:
                await asyncio.sleep(1)
                raise Unavailable("no answer")
            answer = await method(*arguments, **named)
            if storm.random() < 0.05:
                await asyncio.sleep(1)
                raise UnknownOutcome("the answer was lost")
            return answer

        return call


class Attempt(Struct, frozen=True):
    sent: float
    ended: float
    answer: object
    """What was returned, or the error."""

    @property
    def answered(self) -> bool:
        return not isinstance(self.answer, BaseException)

    @property
    def refused(self) -> bool:
        """It says that nothing was done; other errors leave that open."""
        error = self.answer
        if isinstance(error, Deposed | Conflict | Gone):
            return False
        if isinstance(error, Unavailable):
            return "nothing was begun" in str(error)
        return isinstance(error, WrongState | NotFound | InvalidArgument | CapReached)


class Ask:
    """One request of somebody, who may repeat it; with a key others may repeat it too."""

    def __init__(self, what: str, send: Callable[[TopicController], Awaitable[object]], *, key: str | None) -> None:
        self.what = what
        self.send = send
        self.key = key
        self.attempts: list[Attempt] = []

    @property
    def answers(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.answered]


class Change(Ask):
    """Of segments. Its name is its reason, by which the operation in the record is recognised."""

    def __init__(
        self,
        what: str,
        send: Callable[[TopicController, Request], Awaitable[object]],
        plan: Callable[[SegmentLayout, int], Replacements],
        request: Request,
    ) -> None:
        super().__init__(what, lambda at: send(at, request), key=request.key)
        self.plan = plan


class OfSubscription(Ask):
    def __init__(self, what: str, name: str, send: Callable[[TopicController], Awaitable[object]]) -> None:
        super().__init__(what, send, key=None)
        self.name = name


class Crowd:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = random.Random(seed)
        self.store = WatchedStore()
        self.world.store = self.store
        self.world.repository = Repository(self.store, PATHS)
        self.asks: dict[str, Ask] = {}
        self.seen: list[TopicController] = []
        self.members: list[Daemon] = []
        self.links: list[LossySegments] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(self._live(name)) for name in ("a", "b", "c")]
            while len(self.members) < len(living):
                await asyncio.sleep(0)
            await created(self.members, segments=3)
            async with asyncio.TaskGroup() as busy:
                busy.create_task(self._disturb())
                for _ in range(CALLERS):
                    busy.create_task(self._call())
            await self._calm()
            await self.check()
            for life in living:
                life.cancel()

    async def _live(self, name: str) -> None:
        link = LossySegments(self.world)
        async with Daemon(self.world, name, segments=link, settings=SETTINGS).running() as daemon:
            self.members.append(daemon)
            self.links.append(link)
            await asyncio.Event().wait()

    async def _disturb(self) -> None:
        """Storms, and leaders who lose their leadership in one way or another."""
        until = now() + BUSY_SECONDS
        while now() < until:
            await asyncio.sleep(self.rng.random() * 5)
            self._storm(self.rng if self.rng.random() < 0.7 else None)
            leading = [member for member in self.members if TOPIC in member.elections.led]
            match self.rng.randrange(4):
                case 0 if leading and (session := leading[0].keeper.session) is not None:
                    session.lose()
                case 1 if leading:
                    leading[0].link.cut = True
                    await asyncio.sleep(self.rng.choice([1, 12]))
                    leading[0].link.cut = False
                case _:
                    pass
        self._storm(None)

    def _storm(self, chance: random.Random | None) -> None:
        for member, link in zip(self.members, self.links, strict=True):
            member.link.storm = link.storm = chance

    async def _call(self) -> None:
        for number in range(REQUESTS_EACH):
            await asyncio.sleep(self.rng.random() * 8 if number else 0)
            ask = self._choose(await self._pick())
            self.asks.setdefault(ask.what, ask)
            for _ in range(self.rng.randint(1, ATTEMPTS)):
                if await self._send(ask, await self._pick()):
                    break
                await asyncio.sleep(self.rng.random() * 2)

    async def _send(self, ask: Ask, at: TopicController) -> bool:
        sent = now()
        try:
            async with asyncio.timeout(self.rng.choice([0.5, 30, 30, 30])):
                answer: object = await ask.send(at)
        except (ScalableTopicsError, TimeoutError) as error:
            answer = error
        ask.attempts.append(Attempt(sent, now(), answer))
        return ask.attempts[-1].answered

    async def _pick(self) -> TopicController:
        """Of the leader; or of somebody who has been it, whether or not they know that this is over."""
        if self.seen and self.rng.random() < 0.3:
            return self.rng.choice(self.seen)
        found = await controller(self.members, seconds=200)
        if found not in self.seen:
            self.seen.append(found)
        return found

    def _choose(self, at: TopicController) -> Ask:
        rng, active = self.rng, at.record.layout.active
        keyed = [ask for ask in self.asks.values() if ask.key is not None]
        if keyed and rng.random() < 0.2:
            return rng.choice(keyed)
        number = len(self.asks)
        request = Request(
            by="somebody",
            reason=f"r{number}",
            key=rng.choice([None, self.world.new_id()]),
            if_match=rng.choice([None, None, etag(at.record)]),
            wait_seconds=rng.choice([None, 4]),
        )
        window = POLICY.dag_depth_window_seconds
        most = POLICY.entry_bucket_max_per_segment
        match rng.randrange(9):
            case 0 | 1 | 2 if len(active) < 12:
                ways = {one.segment_id: rng.choice([2, 3]) for one in rng.sample(active, rng.choice([1, 1, 2]))}
                return Change(
                    request.reason,
                    lambda at, request: at.split(ways, request),
                    lambda layout, at_ms: split(
                        layout, ways, at_ms=at_ms, max_segments=POLICY.max_segments, depth_window_seconds=window
                    ),
                    request,
                )
            case 3 | 4 | 5 if len(active) > 2:
                index = rng.randrange(len(active) - 1)
                ids = [active[index + 1].segment_id, active[index].segment_id]
                return Change(
                    request.reason,
                    lambda at, request: at.merge(ids, request),
                    lambda layout, at_ms: merge(
                        layout,
                        ids,
                        at_ms=at_ms,
                        max_buckets=most,
                        min_segments=POLICY.min_segments,
                        depth_window_seconds=window,
                    ),
                    request,
                )
            case 6:
                ids, buckets = [rng.choice(active).segment_id], rng.randint(1, 9)
                return Change(
                    request.reason,
                    lambda at, request: at.rebucket(ids, buckets, request),
                    lambda layout, at_ms: rebucket(
                        layout, ids, buckets, at_ms=at_ms, max_buckets=most, depth_window_seconds=window
                    ),
                    request,
                )
            case 7:
                name = rng.choice(["s0", "s1"])
                return OfSubscription(f"unsubscribe {number}", name, lambda at: at.subscriptions.delete(name))
            case _:
                name, position = rng.choice(["s0", "s1"]), rng.choice(list(InitialPosition))
                return OfSubscription(
                    f"subscribe {number}",
                    name,
                    lambda at: at.subscriptions.create(name, SubscriptionType.STREAM, position),
                )

    async def _calm(self) -> None:
        """What was begun is finished by itself."""
        self._storm(None)
        async with asyncio.timeout(CALM_SECONDS):
            while not await self._is_calm():
                await asyncio.sleep(1)
        await asyncio.sleep(3 * SETTINGS.gc_interval_seconds)
        assert await self._is_calm()

    async def _is_calm(self) -> bool:
        record = await self.world.record()
        known = (await self.world.repository.subscriptions(TOPIC)).values()
        settled = all(one.value.state is SubscriptionState.READY for one in known)
        return settled and record.operation is None and record.state is TopicState.ACTIVE

    async def check(self) -> None:
        begun, ended = self._history()
        self._check_layout(begun, [one for _, one in ended])
        self._check_answers(begun, ended)
        self._check_subscriptions()
        await self._check_cursors()

    def _history(self) -> tuple[dict[str, tuple[float, Operation]], list[tuple[float, FinishedOperation]]]:
        """Every change that was begun, with the time; and all that ended, in their order."""
        begun: dict[str, tuple[float, Operation]] = {}
        ended: dict[str, tuple[float, FinishedOperation]] = {}
        for at, record in self.store.records:
            if record.operation is not None and record.operation.kind is not OperationKind.CREATE:
                begun.setdefault(record.operation.id, (at, record.operation))
            for finished in record.recent_operations:
                if finished.kind is not OperationKind.CREATE:
                    assert ended.setdefault(finished.id, (at, finished))[1] == finished
        assert list(begun) == list(ended), "one after the other, and each to its end"
        return begun, list(ended.values())

    def _check_layout(self, begun: dict[str, tuple[float, Operation]], order: Sequence[FinishedOperation]) -> None:
        """One after the other on a model, it becomes what the store has."""
        first, last = self.store.records[0][1].layout, self.store.records[-1][1].layout
        layout = initial_layout(3, at_ms=first.segments[0].created_at_ms)
        for finished in order:
            assert finished.outcome is Outcome.DONE
            operation = begun[finished.id][1]
            asked = self.asks[operation.reason]
            assert isinstance(asked, Change)
            replacements = asked.plan(layout, children(operation.replacements)[0].created_at_ms)
            assert replacements == operation.replacements, f"{operation.reason} is not what was asked for"
            terminated = dict.fromkeys(finished.parents, NOTHING)
            layout = layout.apply(replacements, at_ms=finished.finished_at_ms, terminated=terminated)
        assert layout == last

    def _check_answers(
        self, begun: dict[str, tuple[float, Operation]], ended: Sequence[tuple[float, FinishedOperation]]
    ) -> None:
        of: defaultdict[str, list[FinishedOperation]] = defaultdict(list)
        for _, finished in ended:
            of[begun[finished.id][1].reason].append(finished)
        place = {finished.id: (index, at) for index, (at, finished) in enumerate(ended)}
        placed: list[tuple[float, float, int]] = []
        for ask in self.asks.values():
            if not isinstance(ask, Change):
                continue
            done = of[ask.what]
            if all(attempt.refused for attempt in ask.attempts):
                assert not done, f"{ask.what} was refused, and was done: {ask.attempts}"
            if ask.key is not None:
                assert len(done) <= 1, f"{ask.what} has a key, and was done {len(done)} times"
                self._check_key(ask, [(place[finished.id][1], finished) for finished in done])
            assert len(done) <= sum(not attempt.refused for attempt in ask.attempts)
            for attempt in ask.answers:
                assert attempt.answer in done, f"{ask.what} was answered with {attempt.answer}, and did {done}"
                assert isinstance(attempt.answer, FinishedOperation)
                index, at = place[attempt.answer.id]
                assert at <= attempt.ended, "it was answered before it was done"
                placed.append((min(one.sent for one in ask.attempts), attempt.ended, index))
            first_sent = min(one.sent for one in ask.attempts)
            assert all(begun[finished.id][0] >= first_sent for finished in done)
        for _, answered_at, index in placed:
            later = [other for sent, _, other in placed if sent > answered_at]
            assert all(index < other for other in later), "what was asked later was done before what was answered"

    def _check_key(self, ask: Ask, done: Sequence[tuple[float, FinishedOperation]]) -> None:
        """The same key, the same answer; also from the next leader, and whatever has become of the topic since."""
        for at, finished in done:
            assert finished.request_key == ask.key
            for attempt in ask.attempts:
                waited_in_vain = isinstance(attempt.answer, Unavailable)
                if attempt.sent > at and attempt.refused and not waited_in_vain:
                    raise AssertionError(f"{ask.what} was done, and then refused: {attempt.answer}")

    def _check_subscriptions(self) -> None:
        """Each answer was true at some instant between its question and itself."""
        created_by: defaultdict[str, int] = defaultdict(int)
        deleted_by: defaultdict[str, int] = defaultdict(int)
        for ask in self.asks.values():
            if not isinstance(ask, OfSubscription):
                continue
            making = ask.what.startswith("subscribe")
            for attempt in ask.attempts:
                states = self._states(ask.name, attempt)
                if attempt.answered:
                    assert (SubscriptionState.READY if making else None) in states, f"{ask.what} {states}"
                elif isinstance(attempt.answer, NotFound) and not isinstance(attempt.answer, Gone):
                    assert None in states, f"{ask.what} {states}"
                if not attempt.refused:
                    (created_by if making else deleted_by)[ask.name] += 1
        for name, history in self.store.subscriptions.items():
            states_of = [state for _, state in history]
            assert states_of.count(SubscriptionState.CREATING) <= created_by[name]
            assert states_of.count(SubscriptionState.DELETING) <= deleted_by[name]

    def _states(self, name: str, attempt: Attempt) -> set[SubscriptionState | None]:
        """All that it was in between."""
        history = self.store.subscriptions[name]
        following = [at for at, _ in history[1:]] + [float("inf")]
        return {
            state
            for (since, state), until in zip(history, following, strict=True)
            if since <= attempt.ended and until >= attempt.sent
        }

    async def _check_cursors(self) -> None:
        record = await self.world.record()
        names = (await self.world.repository.subscriptions(TOPIC)).keys()
        truth = memory_segments(self.world.disk, now_ms=self.world.now_ms)
        for segment in record.layout.segments.values():
            facts = await truth.describe(segment_address(TOPIC, segment, incarnation=record.incarnation))
            assert facts.subscriptions.keys() == names, f"segment {segment.segment_id}"
            assert (facts.terminated is None) is segment.is_active


def run_crowd(seed: int) -> Crowd:
    crowds: list[Crowd] = []

    async def run() -> None:
        crowds.append(Crowd(seed))
        await crowds[0].run()

    try:
        run_virtual(run())
    except BaseException as error:
        told = [f"{ask.what}: {ask.attempts}" for crowd in crowds for ask in crowd.asks.values()]
        error.add_note("\n".join([*told, f"seed {seed}"]))
        raise
    return crowds[0]


@pytest.mark.parametrize("part", range(2))
def test_concurrent_requests_are_explained_by_one_order(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    first = part * SEEDS_AT_ONCE if part == 0 else random.SystemRandom().randrange(1 << 31)
    done: defaultdict[str, int] = defaultdict(int)
    for seed in range(first, first + SEEDS_AT_ONCE):
        crowd = run_crowd(seed)
        for ask in crowd.asks.values():
            for attempt in ask.attempts:
                done[type(attempt.answer).__name__] += 1
    with capsys.disabled():
        print(f" seeds {first}:+{SEEDS_AT_ONCE} {dict(done)}", end="")
    assert done["FinishedOperation"] > SEEDS_AT_ONCE
    assert done["Deposed"] > 0
