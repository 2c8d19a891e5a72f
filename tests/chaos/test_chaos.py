"""Half a minute of chaos, and a checker of histories that knows wrong from right."""

import asyncio
import json
import random
import signal
from typing import Any

import pytest

from scalable_topics.metadata.store import Deletion, KeyValue
from scalable_topics.model.names import TopicName
from tests.chaos.driver import arena, run
from tests.chaos.history import PATHS, violations, writes_key

TOPIC = TopicName.parse("topic://t/n/x")


def leads(daemon: str, revision: int, *, term: int | None = None) -> KeyValue:
    value = json.dumps({"brokerId": daemon}).encode()
    return KeyValue(PATHS.controller(TOPIC), value, term or revision, revision)


def falls(revision: int) -> Deletion:
    return Deletion(PATHS.controller(TOPIC), revision)


def writes(daemon: str, term: int, revision: int, at: str = "") -> KeyValue:
    value = json.dumps({"daemon": daemon, "term": term, "at": at or f"w{revision}"}).encode()
    return KeyValue(writes_key(TOPIC), value, 1, revision)


def said(revision: int, at: str = "") -> dict[str, Any]:
    return {
        "daemon": "a",
        "what": "acknowledged",
        "topic": str(TOPIC),
        "at": at or f"w{revision}",
        "revision": revision,
    }


def test_a_lawful_history() -> None:
    events = (leads("a", 5), writes("a", 5, 6), falls(7), leads("b", 8), writes("b", 8, 9))

    assert violations(events, [said(6)]) == []


@pytest.mark.parametrize(
    ("events", "logs", "story"),
    [
        ([leads("a", 5), falls(6), writes("a", 5, 7)], [], "a write of term 5 was accepted in term None"),
        ([leads("a", 5), falls(6), leads("b", 7), writes("a", 5, 8)], [], "accepted in term 7"),
        ([leads("a", 5), writes("b", 5, 6)], [], "b wrote in the term of a"),
        ([leads("a", 5), leads("b", 6, term=5)], [], "two leaders in term 5"),
        ([leads("a", 5), falls(6), leads("b", 7, term=4)], [], "term fell from 5 to 4"),
        ([leads("a", 5), writes("a", 5, 6, "x"), writes("a", 5, 7, "x")], [], "happened twice"),
        ([leads("a", 5)], [said(6)], "the acknowledged write w6 at 6 is not there"),
        ([leads("a", 5), writes("a", 5, 6)], [said(7, "w6")], "w6 at 7 is not there"),
        ([leads("a", 5), falls(3)], [], "out of order"),
        (
            [leads("a", 5), writes("a", 5, 6)],
            [{"what": "told", "daemon": "a", "after": 4, "revision": 6, "sum": 1}],
            "a was told something else than 4 to 6",
        ),
        ([], [{"what": "disorder", "daemon": "a", "seen": 9, "revision": 8}], "a was told revision 8 after 9"),
    ],
)
def test_unlawful_histories(events: list[KeyValue | Deletion], logs: list[dict[str, Any]], story: str) -> None:
    assert any(story in violation for violation in violations(events, logs))


async def test_a_few_seconds_of_chaos() -> None:
    outcome = await run(12, seed=20261118, daemons=2, topics=8)

    assert outcome.violations == []
    assert sum(outcome.faults.values()) >= 4
    assert outcome.acknowledged > 100


async def test_a_daemon_that_writes_without_a_fence_is_convicted() -> None:
    """It is stopped until somebody else leads, and then goes on writing for the terms it had."""
    async with arena(random.Random(1), daemons=2, topics=8, cheat=True) as chaos:
        recording = asyncio.create_task(chaos.record())
        assert await chaos.converged()
        cheat = chaos.processes[0]
        async with asyncio.timeout(30):
            while not any(line["what"] == "gained" for line in cheat.lines()):
                await asyncio.sleep(0.2)
        cheat.send(signal.SIGSTOP)
        await asyncio.sleep(1)
        assert await chaos.converged(), "the other one leads everything"
        cheat.send(signal.SIGCONT)
        assert await chaos.converged()
        async with asyncio.timeout(30):
            while not violations(chaos.events, []):
                await asyncio.sleep(0.2)
        recording.cancel()
