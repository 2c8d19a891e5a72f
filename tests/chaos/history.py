"""What happened, and whether it may have.

The store's own history is the truth: every version of every election key and of every word that a leader wrote.
Against it stand the daemons' logs.
"""

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalable_topics.metadata.store import Deletion, KeyValue
from scalable_topics.model.names import TopicName
from scalable_topics.model.paths import StorePaths

PATHS = StorePaths()


def writes_key(topic: TopicName) -> str:
    return f"{PATHS.record(topic)}/writes"


def _told_wrongly(events: Sequence[KeyValue | Deletion], line: Mapping[str, Any]) -> bool:
    """Was anything left out, repeated or out of order in what a watch told after one revision, up to another?"""
    first = bisect_right(events, line["after"], key=lambda event: event.mod_revision)
    last = bisect_right(events, line["revision"], key=lambda event: event.mod_revision)
    total = 0
    for event in events[first:last]:
        total = zlib.crc32(f"{event.mod_revision} {event.key}".encode(), total)
    return bool(total != line["sum"])


def violations(events: Sequence[KeyValue | Deletion], logs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Everything that must never happen, and did."""
    found: list[str] = []
    terms: dict[str, int] = {}
    highest: dict[str, int] = {}
    leaders: dict[tuple[str, int], str] = {}
    stored: dict[str, tuple[int, Mapping[str, Any]]] = {}
    revision = 0
    for event in events:
        if event.mod_revision < revision:
            found.append(f"the history itself is out of order at {event.mod_revision}")
        revision = event.mod_revision
        topic, part = PATHS.topic_of(event.key) or (None, "")
        name = str(topic)
        if part == "controller":
            if isinstance(event, Deletion):
                terms.pop(name, None)
                continue
            leader = json.loads(event.value)["brokerId"]
            if event.create_revision < highest.get(name, 0):
                found.append(f"{name}: term fell from {highest[name]} to {event.create_revision}")
            if leaders.setdefault((name, event.create_revision), leader) != leader:
                found.append(f"{name}: two leaders in term {event.create_revision}")
            terms[name] = highest[name] = event.create_revision
        elif part == "writes" and isinstance(event, KeyValue):
            word = json.loads(event.value)
            if terms.get(name) != word["term"]:
                found.append(f"{name}: a write of term {word['term']} was accepted in term {terms.get(name)}")
            if leaders.get((name, word["term"])) != word["daemon"]:
                found.append(f"{name}: {word['daemon']} wrote in the term of {leaders.get((name, word['term']))}")
            if word["at"] in stored:
                found.append(f"{name}: the write {word['at']} happened twice")
            stored[word["at"]] = event.mod_revision, word
    for line in logs:
        if line["what"] == "acknowledged" and stored.get(line["at"], (0, {}))[0] != line["revision"]:
            found.append(f"{line['topic']}: the acknowledged write {line['at']} at {line['revision']} is not there")
        if line["what"] == "told" and _told_wrongly(events, line):
            found.append(f"{line['daemon']} was told something else than {line['after']} to {line['revision']}")
        if line["what"] == "disorder":
            found.append(f"{line['daemon']} was told revision {line['revision']} after {line['seen']}")
    return found
