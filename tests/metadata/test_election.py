"""The election step by itself: given these events, then exactly these instructions."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.metadata.election import (
    Campaign,
    CampaignEnded,
    ControllersSeen,
    Election,
    Event,
    Gain,
    Instruction,
    Lose,
    Resign,
    ResignEnded,
    SessionLost,
    SessionOpened,
    StoreRestarted,
    TimePassed,
    TopicSeen,
)
from scalable_topics.metadata.leadership import ElectionKey, Leadership
from scalable_topics.metadata.store import KeyValue
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.names import TopicName
from scalable_topics.policy.ranking import ranked
from tests.metadata.daemons import PATHS, topic

LEASE = 7
T = topic(0)


def key(term: int, lease: int, name: TopicName = T) -> KeyValue:
    return KeyValue(PATHS.controller(name), b"{}", term, term, lease)


def seen(revision: int, leader: KeyValue | None = None, *, name: TopicName = T, exists: bool = True) -> TopicSeen:
    return TopicSeen(name, exists, False, ElectionKey(revision, leader))


def leadership(term: int, name: TopicName = T, lease: int = LEASE) -> Leadership:
    return Leadership(name, PATHS.controller(name), term, lease)


class Script:
    """An election that is alone in the world, with a session, unless the script says otherwise."""

    def __init__(self, *controllers: str, is_idle: Callable[[TopicName], bool] = lambda _: True) -> None:
        self.now = 0.0
        self.election = Election("a", is_idle=is_idle, stable_seconds=600)
        self.say(ControllersSeen(dict.fromkeys(controllers or ("a",), 1)))
        self.say(SessionOpened(LEASE))

    def say(self, event: Event) -> list[Instruction]:
        return self.election.handle(event, now=self.now)

    def wait(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.say(TimePassed())


def test_a_lost_request_is_tried_again_until_the_key_is_there() -> None:
    script = Script()
    assert script.say(seen(5)) == [Campaign(T, 1)]
    assert script.say(CampaignEnded(T, 1, None)) == []
    for attempt in range(2, 200):
        assert script.election.next_wake() == script.now + 1
        assert script.wait(0.9) == []
        assert script.wait(0.1) == [Campaign(T, attempt)]
        assert script.say(CampaignEnded(T, attempt, ElectionKey(5, None))) == [], "nobody leads: no reason to stop"
    script.wait(1)
    assert script.say(CampaignEnded(T, 200, ElectionKey(9, key(9, LEASE)))) == [Gain(leadership(9))]
    assert script.election.next_wake() is None


def test_a_request_that_lands_late_makes_a_leader_that_knows_it() -> None:
    script = Script()
    script.say(seen(5))
    script.say(CampaignEnded(T, 1, None))
    assert script.say(seen(6, key(6, LEASE))) == [Gain(leadership(6))]
    assert script.wait(10) == []
    assert script.election.led == {T: leadership(6)}


def test_the_later_revision_is_right() -> None:
    script = Script()
    script.say(seen(5))
    assert script.say(CampaignEnded(T, 1, ElectionKey(9, key(9, LEASE)))) == [Gain(leadership(9))]
    assert script.say(seen(7)) == [], "the watch is behind the answer"
    assert script.say(seen(8, key(8, 99))) == []
    assert script.say(seen(12, key(12, 99))) == [Lose(leadership(9))]
    assert script.say(seen(13)) == [Campaign(T, 2)]


def test_of_two_terms_the_old_one_is_lost_first() -> None:
    script = Script()
    script.say(seen(5, key(5, LEASE)))
    assert script.say(seen(8, key(8, LEASE))) == [Lose(leadership(5)), Gain(leadership(8))]


def test_nothing_is_led_without_a_session_and_what_carries_its_lease_is() -> None:
    script = Script()
    assert script.say(SessionLost()) == []
    assert script.say(seen(5, key(5, LEASE))) == []
    assert script.say(seen(6, name=topic(1))) == []
    assert script.say(SessionOpened(LEASE)) == [Gain(leadership(5)), Campaign(topic(1), 1)]
    assert script.say(SessionLost()) == [Lose(leadership(5))]
    assert script.say(CampaignEnded(topic(1), 1, ElectionKey(7, key(7, LEASE, topic(1))))) == []
    assert script.election.led == {}


def test_ranks_leave_each_other_alone() -> None:
    name = next(topic(n) for n in range(100) if ranked(str(topic(n)), "abc").index("a") == 2)
    script = Script("a", "b", "c")
    assert script.say(seen(5, name=name)) == []
    assert script.wait(1.9) == []
    first = ranked(str(name), "abc")[0]
    assert script.say(ControllersSeen({broker: 1 for broker in "abc" if broker != first})) == [Campaign(name, 1)]


def test_a_daemon_that_is_no_controller_campaigns_for_nothing() -> None:
    script = Script("b")
    assert script.say(seen(5)) == []
    assert script.wait(1_000) == []
    assert script.say(ControllersSeen({"a": 2})) == [Campaign(T, 1)]


def test_hand_backs_wait_for_calm_and_idleness_and_go_slowly() -> None:
    names = [topic(n) for n in range(200) if ranked(str(topic(n)), "ab")[0] == "b"][:50]
    busy = names[0]
    script = Script("a", is_idle=lambda name: name != busy)
    for name in names:
        script.say(seen(5, key(5, LEASE, name), name=name))
    script.now = 100
    assert script.say(ControllersSeen({"a": 1, "b": 6})) == []
    assert script.wait(599) == []
    assert script.say(ControllersSeen({"b": 6, "a": 1})) == [], "the same ones: the calm goes on"
    first = script.wait(1)
    assert len(first) == 20
    assert all(isinstance(each, Resign) for each in first)
    assert script.wait(0.5) == [], "at most twenty a second"
    second, third = script.wait(0.5), script.wait(1)
    resigned = [each.leadership.topic for each in (*first, *second, *third) if isinstance(each, Resign)]
    assert sorted(resigned) == sorted(set(names) - {busy}), "each once, while its answer is out"
    assert script.say(ResignEnded(names[1])) == []
    assert script.wait(1) == [Resign(leadership(5, names[1]))], "its answer was lost, and the key is still there"


def test_pitfall_a_restored_store_takes_everything_back_until_it_is_told_again() -> None:
    script = Script()
    script.say(seen(50, key(50, LEASE)))
    script.say(seen(60, name=topic(1)))
    assert script.say(StoreRestarted()) == [Lose(leadership(50))]
    assert script.say(seen(20, key(8, 3))) == []
    assert script.say(CampaignEnded(topic(1), 1, ElectionKey(61, key(61, LEASE, topic(1))))) == []
    assert script.say(seen(21, name=topic(1))) == [Campaign(topic(1), 2)], "revisions count from the new life"
    assert script.say(seen(22)) == [Campaign(T, 3)]


def test_a_topic_that_is_gone_needs_no_leader() -> None:
    script = Script()
    script.say(seen(5, key(5, LEASE)))
    assert script.say(seen(6, exists=False)) == [Lose(leadership(5))]
    assert script.wait(10_000) == []
    assert script.election._topics == {}, "nothing is remembered of it"


@pytest.mark.parametrize(("term", "lease"), [(0, 1), (-1, 1), (1, 0)])
def test_an_absent_key_is_no_leadership(term: int, lease: int) -> None:
    with pytest.raises(InvalidArgument, match="an absent key compares equal to 0"):
        Leadership(topic(0), "key", term, lease)


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=2), st.text(max_size=5))
def test_a_daemon_that_goes_moves_only_its_own_topics(brokers: set[str], name: str) -> None:
    order = ranked(name, brokers)

    for gone in brokers:
        assert ranked(name, brokers - {gone}) == [broker for broker in order if broker != gone]
    assert sorted(order) == sorted(brokers)
