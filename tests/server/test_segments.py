"""Who takes over the messages of a terminated segment."""

from msgspec.structs import replace

from scalable_topics.control.phases import begin, finish, seal
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import Operation, OperationKind, Phase
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.replacements import split
from scalable_topics.server.segments import heirs_of
from tests.strategies import INCARNATION

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
