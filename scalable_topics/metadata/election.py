"""Every topic always has a leader: what this daemon has to do for that, as a pure step. Events in, instructions out.

The daemons agree on a rank for each topic without talking; the first tries at once, the next a second later, and so
on, so that a crash is followed by one attempt per topic and not by a herd.

One rule decides everything: *a topic's election key, as the store last told it, is the truth*. Absent: campaign, again
and again until it is there. There with the lease of our living session: we lead, whoever's answer told us. There with
another lease: somebody else does. So a lost request, a lost answer and a request that lands late need no cases of
their own.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from scalable_topics.metadata.leadership import ElectionKey, Leadership
from scalable_topics.model.names import TopicName
from scalable_topics.policy.ranking import ranked

RANK_SECONDS: Final = 1.0
"""How long each rank leaves the one before it alone."""
MAX_CAMPAIGNS: Final = 64
"""In flight at once."""
RETRY_SECONDS: Final = 1.0
STABLE_SECONDS: Final = 600.0
"""How long the controllers must have been the same ones before leadership is handed back to first ranks."""
HAND_BACKS_PER_SECOND: Final = 20


class TopicSeen(Struct, frozen=True):
    """The store's word on a topic: has it a record, is a change of it half done, and what is its election key?"""

    topic: TopicName
    exists: bool
    busy: bool
    key: ElectionKey


class StoreRestarted(Struct, frozen=True):
    """The store went back or was replaced: what is known of it is void, and will all be told again."""


class ControllersSeen(Struct, frozen=True):
    """The daemons that may lead, with the create revisions of their broker keys."""

    controllers: Mapping[str, int]


class SessionOpened(Struct, frozen=True):
    lease: int


class SessionLost(Struct, frozen=True):
    """Also ends every campaign and resignation that is under way: nothing will be heard of them."""


class CampaignEnded(Struct, frozen=True):
    """`key` is what it found; None = it failed, and nothing is known. An attempt that is not under way any more is not
    listened to: its answer may be from before the store went back.
    """

    topic: TopicName
    attempt: int
    key: ElectionKey | None


class ResignEnded(Struct, frozen=True):
    """With whatever outcome: the store tells when the key is gone."""

    topic: TopicName


class TimePassed(Struct, frozen=True):
    pass


Event = (
    TopicSeen
    | StoreRestarted
    | ControllersSeen
    | SessionOpened
    | SessionLost
    | CampaignEnded
    | ResignEnded
    | TimePassed
)


class Campaign(Struct, frozen=True):
    """Try to become the leader, and report `CampaignEnded`."""

    topic: TopicName
    attempt: int


class Gain(Struct, frozen=True):
    """From now on this daemon leads; told before anything else is done for this leadership."""

    leadership: Leadership


class Lose(Struct, frozen=True):
    """From now on it does not."""

    leadership: Leadership


class Resign(Struct, frozen=True):
    """Delete the election key, fenced, and report `ResignEnded`. The daemon leads until the store says otherwise."""

    leadership: Leadership


Instruction = Campaign | Gain | Lose | Resign


class _Topic(Struct):
    exists: bool
    busy: bool
    key: ElectionKey
    leaderless_since: float | None = None
    retry_at: float = 0.0


class Election:
    """One daemon's part. `handle` is the only way to change it, and reads no clock."""

    def __init__(
        self, broker_id: str, *, is_idle: Callable[[TopicName], bool], stable_seconds: float = STABLE_SECONDS
    ) -> None:
        """`is_idle`: may leadership of this topic be given away now? Must answer at once and change nothing."""
        self._broker_id = broker_id
        self._is_idle = is_idle
        self._stable_seconds = stable_seconds
        self._lease = 0
        self._topics: dict[TopicName, _Topic] = {}
        self._led: dict[TopicName, Leadership] = {}
        self._controllers: Mapping[str, int] = {}
        self._stable_since = 0.0
        self._campaigning: dict[TopicName, int] = {}
        self._attempts = count(1)
        self._resigning: set[TopicName] = set()
        self._guests: dict[TopicName, None] = {}
        """Topics that we lead and somebody else ranks first for, in an order that a run repeats."""
        self._timed: list[tuple[float, TopicName]] = []
        """A heap of when to campaign for what. Entries may be out of date, which is found out when they are due."""
        self._ready: list[tuple[bool, float, TopicName]] = []
        """A heap of what is due: topics with a change half done first."""
        self._hand_back_at = 0.0
        self._todo: list[Instruction] = []

    @property
    def led(self) -> Mapping[TopicName, Leadership]:
        return MappingProxyType(self._led)

    def next_wake(self) -> float | None:
        """When time alone gives reason to act; None = only an event does."""
        times = [self._timed[0][0]] if self._timed and self._lease else []
        if self._guests and self._lease:
            times.append(max(self._hand_back_at, self._stable_since + self._stable_seconds))
        return min(times, default=None)

    def handle(self, event: Event, *, now: float) -> list[Instruction]:
        """What has to be done because of this event, in this order. `now` never falls."""
        match event:
            case TopicSeen():
                self._see(event, now)
            case StoreRestarted():
                self._topics.clear()
                self._timed.clear()
                self._ready.clear()
                self._campaigning.clear()
                self._settle(list(self._led), now)
            case ControllersSeen(controllers=controllers):
                if controllers != self._controllers:
                    self._rank_again(controllers, now)
            case SessionOpened(lease=lease):
                self._lease = lease
                self._settle([topic for topic, known in self._topics.items() if self._holds(known)], now)
            case SessionLost():
                self._lease = 0
                self._campaigning.clear()
                self._resigning.clear()
                self._settle(list(self._led), now)
            case CampaignEnded(topic=topic, attempt=attempt, key=key):
                if self._campaigning.get(topic) == attempt:
                    del self._campaigning[topic]
                    self._end_campaign(topic, key, now)
            case ResignEnded(topic=topic):
                self._resigning.discard(topic)
            case TimePassed():
                pass
        self._hand_back(now)
        self._campaign(now)
        todo, self._todo = self._todo, []
        return todo

    def _end_campaign(self, topic: TopicName, key: ElectionKey | None, now: float) -> None:
        known = self._topics.get(topic)
        if known is not None:
            known.retry_at = now + RETRY_SECONDS
            self._learn(topic, known, key, now)

    def _see(self, seen: TopicSeen, now: float) -> None:
        known = self._topics.get(seen.topic)
        if known is None:
            known = self._topics[seen.topic] = _Topic(seen.exists, seen.busy, seen.key)
        known.exists, known.busy = seen.exists, seen.busy
        self._learn(seen.topic, known, seen.key, now)

    def _learn(self, topic: TopicName, known: _Topic, key: ElectionKey | None, now: float) -> None:
        """An answer and the watch come on different ways: the later revision is right."""
        if key is not None and key.revision >= known.key.revision:
            known.key = key
        self._settle([topic], now)

    def _settle(self, topics: Iterable[TopicName], now: float) -> None:
        """Bring what we lead, and what nobody leads, in line with what is known."""
        for topic in topics:
            known = self._topics.get(topic)
            ours = self._led.get(topic)
            leader = known.key.leader if known is not None and self._holds(known) else None
            if ours is not None and not ours.is_held_by(leader):
                self._lose(ours)
            if leader is not None and topic not in self._led:
                self._gain(Leadership(topic, leader.key, leader.create_revision, leader.lease))
            if known is None:
                continue
            if known.exists and known.key.leader is None:
                if known.leaderless_since is None:
                    known.leaderless_since = now
                self._schedule(topic, known)
            else:
                known.leaderless_since, known.retry_at = None, 0.0
                if not known.exists and known.key.leader is None:
                    del self._topics[topic]

    def _holds(self, known: _Topic) -> bool:
        """Is it our key, on a topic that is there?"""
        return known.exists and known.key.leader is not None and 0 < self._lease == known.key.leader.lease

    def _gain(self, leadership: Leadership) -> None:
        self._led[leadership.topic] = leadership
        if self._rank(leadership.topic) != 0:
            self._guests[leadership.topic] = None
        self._todo.append(Gain(leadership))

    def _lose(self, leadership: Leadership) -> None:
        del self._led[leadership.topic]
        self._guests.pop(leadership.topic, None)
        self._todo.append(Lose(leadership))

    def _rank_again(self, controllers: Mapping[str, int], now: float) -> None:
        self._controllers = dict(controllers)
        self._stable_since = now
        self._guests = {topic: None for topic in self._led if self._rank(topic) != 0}
        self._timed.clear()
        for topic, known in self._topics.items():
            if known.leaderless_since is not None:
                self._schedule(topic, known)

    def _rank(self, topic: TopicName) -> int | None:
        """Ours for a topic; None = we are not among those who may lead."""
        if self._broker_id not in self._controllers:
            return None
        return ranked(str(topic), self._controllers).index(self._broker_id)

    def _due(self, topic: TopicName, known: _Topic) -> float | None:
        rank = self._rank(topic)
        if rank is None or known.leaderless_since is None or topic in self._campaigning:
            return None
        return max(known.leaderless_since + rank * RANK_SECONDS, known.retry_at)

    def _schedule(self, topic: TopicName, known: _Topic) -> None:
        due = self._due(topic, known)
        if due is not None:
            heappush(self._timed, (due, topic))

    def _campaign(self, now: float) -> None:
        if not self._lease:
            return
        while self._timed and self._timed[0][0] <= now:
            due, topic = heappop(self._timed)
            known = self._topics.get(topic)
            if known is not None and self._due(topic, known) == due:
                heappush(self._ready, (not known.busy, due, topic))
        while self._ready and len(self._campaigning) < MAX_CAMPAIGNS:
            _, due, topic = heappop(self._ready)
            known = self._topics.get(topic)
            if known is not None and self._due(topic, known) == due:
                self._campaigning[topic] = next(self._attempts)
                self._todo.append(Campaign(topic, self._campaigning[topic]))

    def _hand_back(self, now: float) -> None:
        """Slowly, when nothing has moved for long: leadership goes to first ranks, so that load evens out after
        restarts.
        """
        if (
            not self._lease
            or not self._guests
            or now < max(self._hand_back_at, self._stable_since + self._stable_seconds)
        ):
            return
        self._hand_back_at = now + 1.0
        leaving = 0
        for topic in self._guests:
            if leaving == HAND_BACKS_PER_SECOND:
                break
            if topic not in self._resigning and self._is_idle(topic):
                leaving += 1
                self._resigning.add(topic)
                self._todo.append(Resign(self._led[topic]))
