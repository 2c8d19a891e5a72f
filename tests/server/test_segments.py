"""Segments as they are served: who takes over from a terminated one, and what a close does not undo."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from scalable_topics.control.phases import begin, finish, seal
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Operation, OperationKind, Phase
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.replacements import split
from scalable_topics.segments.memory import MemoryDisk, memory_segments
from scalable_topics.segments.port import EXCLUSIVE
from scalable_topics.segments.rows import Rows
from scalable_topics.server.segments import heirs_of
from tests.segments.worlds import address, call, message, stamp
from tests.strategies import INCARNATION
from tests.virtual_time import run_virtual

TOPIC = TopicName.parse("topic://t/n/orders")


def test_children_are_told_from_sealing_on() -> None:
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(2))
    operation = Operation(
        id="op",
        kind=OperationKind.SPLIT,
        phase=Phase.PREPARING,
        replacements=split(record.layout, {0: 2}, at_ms=1),
        reason="",
        by="me",
        started_at_ms=1,
    )
    preparing = begin(TOPIC, record, operation)
    sealing = seal(preparing)
    done = finish(sealing, {0: (0, 1)}, at_ms=2)

    assert heirs_of(record, 0) == ()
    assert heirs_of(preparing, 0) == ()
    assert [child.segment_id for child in heirs_of(sealing, 0)] == [2, 3]
    assert heirs_of(sealing, 1) == ()
    assert [child.segment_id for child in heirs_of(done, 0)] == [2, 3]
    assert heirs_of(replace(done, operation=None), 1) == ()


def test_an_acknowledgement_under_way_when_its_segment_is_closed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the crash matrix found it: the session was lost while the write of an ack_through was under way."""

    async def close_meanwhile() -> None:
        segments = memory_segments(MemoryDisk(), now_ms=lambda: 1)
        await segments.create(address(), stamp(), ["s"], call())
        served = await segments.serve(address(), owner_term=1)
        await served.append([message(0)])
        await segments.terminate(address(), call())
        attachment = await served.attach("s", "c", EXCLUSIVE)
        write = served.write

        async def write_and_close(work: Callable[[Rows], object]) -> object:
            answer = await write(work)
            await served.close()
            return answer

        monkeypatch.setattr(served, "write", write_and_close)
        await attachment.ack_through((0, 0))
        facts = await segments.describe(address())
        assert facts.is_drained("s")

    run_virtual(close_meanwhile())
