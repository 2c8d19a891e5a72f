"""The record: one spelling, nothing lost, nothing believed."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.model.errors import DecodeError, InvalidArgument, WrongState
from scalable_topics.model.layout import SegmentLayout, initial_layout, legacy_layout
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Outcome, Phase
from scalable_topics.model.record import MigratedFrom, TopicRecord, TopicState, decode_record, encode_record, remember
from scalable_topics.model.replacements import merge, rollover, split
from tests.strategies import INCARNATION, layouts

texts = st.text(st.characters(codec="utf-8"), max_size=8)
longs = st.integers(0, 2**63 - 1)


@st.composite
def operations(draw: st.DrawFn, layout: SegmentLayout) -> Operation | None:
    divisible = [segment.segment_id for segment in layout.active if segment.hash_range.size > 1]
    if not divisible or draw(st.booleans()):
        return None
    change = split(layout, {draw(st.sampled_from(divisible)): 2}, at_ms=5)
    return Operation(
        id=draw(texts),
        kind=OperationKind.SPLIT,
        phase=draw(st.sampled_from(Phase)),
        replacements=change,
        reason=draw(texts),
        by=draw(texts),
        started_at_ms=draw(longs),
        request_key=draw(st.none() | texts),
    )


@st.composite
def records(draw: st.DrawFn) -> TopicRecord:
    layout = draw(layouts(max_ops=4))
    operation = draw(operations(layout))
    ended = st.builds(
        FinishedOperation,
        id=texts,
        kind=st.sampled_from(OperationKind),
        outcome=st.sampled_from(Outcome),
        finished_at_ms=longs,
        request_key=st.none() | texts,
        parent_runs=st.lists(st.integers(0, 9), max_size=6).map(tuple),
        subscription=st.none() | texts,
        reason=texts,
    )
    return TopicRecord(
        incarnation=draw(st.text("0123456789abcdef", min_size=16, max_size=16)),
        state=draw(st.sampled_from([state for state in TopicState if state is not TopicState.MIGRATING])),
        layout=layout if operation is None else layout.announce(operation.replacements),
        properties=draw(st.dictionaries(texts, texts, max_size=3)),
        auto_scale_policy=draw(st.none() | st.just({"maxSegments": 4, "splitCooldownSeconds": 0.5})),
        operation=operation,
        recent_operations=tuple(draw(st.lists(ended, max_size=3, unique_by=lambda entry: entry.id))),
        garbage=tuple(draw(st.lists(texts, max_size=2))),
        subscriptions_revision=draw(longs),
        load_source=draw(st.none() | texts),
        migrated_from=draw(st.none() | st.builds(MigratedFrom, texts, st.integers(0, 5))),
    )


@given(records())
def test_round_trip_is_byte_identical(record: TopicRecord) -> None:
    data = encode_record(record)

    assert decode_record(data) == record
    assert encode_record(decode_record(data)) == data


def with_remarks(document: Any, data: st.DataObject) -> Any:
    """The same document as a later version might have written it: more fields, here and there."""
    if isinstance(document, dict):
        remarked = {name: with_remarks(value, data) for name, value in document.items()}
        if not all(name.isdigit() for name in remarked) and data.draw(st.booleans()):
            remarked["x-later"] = data.draw(st.sampled_from([1, None, "text", {"a": [1, {"b": 2}]}, [], 2.5]))
        return remarked
    return [with_remarks(value, data) for value in document] if isinstance(document, list) else document


@given(records(), st.data())
def test_unknown_fields_survive_a_read_modify_write(record: TopicRecord, data: st.DataObject) -> None:
    document = json.loads(encode_record(record))
    open_maps = {name: document.pop(name) for name in ("properties", "autoScalePolicy")}
    later = {**with_remarks(document, data), **open_maps, "x-top": {"deep": [1]}}

    read = decode_record(json.dumps(later).encode())
    written = json.loads(encode_record(replace(read, subscriptions_revision=7)))

    assert written == {**later, "subscriptionsRevision": 7}


def test_remarks_go_with_what_they_were_about() -> None:
    """Pitfall 7, taken further: everything that is not ours is copied, and only for as long as it means something."""
    layout = initial_layout(2).apply(split(initial_layout(2), {0: 2}, at_ms=1), at_ms=1)
    first = Operation(
        id="a",
        kind=OperationKind.MERGE,
        phase=Phase.PREPARING,
        replacements=merge(layout, [2, 3], at_ms=2),
        reason="manual",
        by="alice",
        started_at_ms=2,
    )
    done = [
        FinishedOperation(id=name, kind=OperationKind.SPLIT, outcome=Outcome.DONE, finished_at_ms=1) for name in "xy"
    ]
    document = json.loads(
        encode_record(
            TopicRecord(
                incarnation=INCARNATION,
                layout=layout.announce(first.replacements),
                operation=first,
                recent_operations=tuple(done),
            )
        )
    )
    document["segments"]["0"]["colour"] = "red"
    document["segments"]["1"]["colour"] = "blue"
    document["operation"]["mood"] = "calm"
    document["operation"]["replacements"][0]["children"][0]["mood"] = "new"
    document["recentOperations"][1]["mood"] = "old"
    read = decode_record(json.dumps(document).encode())

    def written(record: TopicRecord) -> Any:
        return json.loads(encode_record(record))

    assert written(read) == document
    pruned = written(replace(read, layout=read.layout.prune([0])))
    assert "colour" not in str(pruned["segments"].get("0"))
    assert pruned["segments"]["1"]["colour"] == "blue"
    assert "mood" not in str(written(replace(read, operation=replace(first, id="b")))["operation"])
    assert written(replace(read, operation=None))["operation"] is None
    moved = written(replace(read, recent_operations=read.recent_operations[1:]))["recentOperations"]
    assert [entry.get("mood") for entry in moved] == ["old"]
    dropped = written(replace(read, recent_operations=read.recent_operations[:1]))["recentOperations"]
    assert [entry.get("mood") for entry in dropped] == [None]


def test_pitfall_07_a_layout_change_keeps_policy_and_properties() -> None:
    layout = initial_layout(1)
    record = TopicRecord(
        incarnation=INCARNATION, layout=layout, properties={"owner": "alice"}, auto_scale_policy={"maxSegments": 3}
    )

    changed = replace(record, layout=layout.apply(split(layout, {0: 2}, at_ms=1), at_ms=1))
    read = decode_record(encode_record(changed))

    assert (read.properties, read.auto_scale_policy) == ({"owner": "alice"}, {"maxSegments": 3})


def test_the_field_names_are_the_pips() -> None:
    layout = initial_layout(1).apply(split(initial_layout(1), {0: 2}, at_ms=8), at_ms=9)

    document = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=layout)))

    assert list(document)[:5] == ["epoch", "nextSegmentId", "segments", "properties", "autoScalePolicy"]
    assert document["segments"]["0"] == {
        "segmentId": 0,
        "hashRange": {"start": 0, "end": 65535},
        "state": "SEALED",
        "parentIds": [],
        "childIds": [1, 2],
        "createdAtEpoch": 0,
        "sealedAtEpoch": 1,
        "createdAtMs": 0,
        "sealedAtMs": 9,
        "createdBy": "INITIAL",
        "mergeDepth": 0,
        "entryBuckets": 4,
        "legacyTopicName": None,
        "terminatedAt": None,
    }


def test_field_order_and_white_space_do_not_matter() -> None:
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(3), properties={"b": "1", "a": "2"})
    document = json.loads(encode_record(record))
    document["segments"] = dict(reversed(document["segments"].items()))
    shuffled = json.dumps(dict(reversed(document.items())), indent=2).encode()

    assert decode_record(shuffled) == record
    assert encode_record(decode_record(shuffled)) == encode_record(record)


def split_once() -> SegmentLayout:
    return initial_layout(2).apply(split(initial_layout(2), {0: 2}, at_ms=1), at_ms=1)


VALID = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=split_once())))


@pytest.mark.parametrize("name", ["epoch", "nextSegmentId", "segments", "properties", "incarnation", "state"])
def test_missing_fields_are_named(name: str) -> None:
    document = {key: value for key, value in VALID.items() if key != name}

    with pytest.raises(DecodeError, match=name):
        decode_record(json.dumps(document).encode(), subject="topic://t/n/x")


@pytest.mark.parametrize("name", sorted(VALID["segments"]["0"].keys() - {"legacyTopicName", "terminatedAt"}))
def test_missing_fields_of_a_segment_are_named(name: str) -> None:
    document = json.loads(json.dumps(VALID))
    del document["segments"]["0"][name]

    with pytest.raises(DecodeError, match=rf"topic://t/n/x: .*{name}"):
        decode_record(json.dumps(document).encode(), subject="topic://t/n/x")


@pytest.mark.parametrize(
    ("data", "story"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"x":' + b"[" * 100_000, "recursion"),
        (json.dumps({**VALID, "epoch": float("nan")}).encode(), "malformed"),
        (json.dumps({**VALID, "epoch": 1e400}).encode(), "malformed"),
        (json.dumps({**VALID, "epoch": 10**30}).encode(), "is not a long"),
        (json.dumps({**VALID, "epoch": "1" * 5000}).encode(), "Expected `int`"),
        (json.dumps({**VALID, "incarnation": "xyz"}).encode(), "not an incarnation"),
        (json.dumps({**VALID, "incarnation": "A" * 16}).encode(), "not an incarnation"),
        (json.dumps({**VALID, "x": 0}).replace('"x": 0', '"x": ' + "9" * 5000).encode(), "Exceeds|out of range"),
        (json.dumps({**VALID, "x": 0}).replace('"x": 0', '"x": 1, "x": 2').encode(), "'x' occurs twice"),
        (json.dumps(VALID).replace('"0": {', '"1": {', 1).encode(), "segments 0 and 2 do not agree"),
        (json.dumps({**VALID, "segments": {}}).encode(), "do not tile"),
    ],
)
def test_hostile_records(data: bytes, story: str) -> None:
    with pytest.raises(DecodeError, match=story):
        decode_record(data)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ACTIVE", "SEALED", "SPLIT", "LEGACY", 0, 1, 2, 3, 32767, 65535, 2**63 - 1, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    found: list[tuple[Any, Any]] = []
    if isinstance(document, (dict, list)):
        for key in document if isinstance(document, dict) else range(len(document)):
            found += [(document, key), *places(document[key])]
    return found


@settings(max_examples=400)
@given(st.data())
def test_damaged_records_are_refused_or_sound_and_nothing_else(data: st.DataObject) -> None:
    document = json.loads(json.dumps(VALID))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(document)))
        match data.draw(st.sampled_from(["replace", "delete", "copy"])):
            case "delete":
                del container[key]
            case "copy":
                other, there = data.draw(st.sampled_from(places(document)))
                container[key] = json.loads(json.dumps(other[there]))
            case _:
                container[key] = data.draw(junk)
        if not places(document):
            break
    damaged = json.dumps(document).encode()

    try:
        record = decode_record(damaged)
    except DecodeError as error:
        assert str(error)
    else:
        record.layout.check()
        assert decode_record(encode_record(record)) == record


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_record(data)


@given(st.data())
def test_truncated_records_are_refused(data: st.DataObject) -> None:
    whole = json.dumps(VALID).encode()

    with pytest.raises(DecodeError):
        decode_record(whole[: data.draw(st.integers(0, len(whole) - 1))])


def with_operation(**child: Any) -> bytes:
    """A record in the middle of a split of segment 0, whose first child is tampered with."""
    layout = initial_layout(2)
    change = split(layout, {0: 2}, at_ms=1)
    operation = Operation(
        id="op",
        kind=OperationKind.SPLIT,
        phase=Phase.PREPARING,
        replacements=change,
        reason="manual",
        by="alice",
        started_at_ms=2,
    )
    whole = encode_record(TopicRecord(incarnation=INCARNATION, layout=layout.announce(change), operation=operation))
    document = json.loads(whole)
    document["operation"]["replacements"][0]["children"][0].update(child)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("child", "story"),
    [
        ({"createdBy": "INITIAL"}, "cannot come from segment 0"),
        ({"mergeDepth": 7}, "cannot come from segment 0"),
        ({"segmentId": 1}, "this id is taken"),
        ({"segmentId": 2**63 - 1}, "used up all segment ids"),
        ({"segmentId": 50}, "ids were never burnt"),
        ({"parentIds": [1]}, "it is not a new child of"),
        ({"hashRange": {"start": 0, "end": 5}}, "do not tile"),
        ({"createdAtEpoch": 0}, ""),
    ],
)
def test_an_operation_that_could_never_be_finished_is_told_when_it_is_read(child: dict[str, Any], story: str) -> None:
    decode_record(with_operation())
    if not story:
        decode_record(with_operation(**child))
        return
    with pytest.raises(DecodeError, match=story):
        decode_record(with_operation(**child))


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"operation": {"replacements": []}}, "changes nothing"),
        ({"operation": {"startedAtMs": -1}}, "startedAtMs -1 is not a time"),
        ({"subscriptionsRevision": -5}, "subscriptionsRevision -5"),
        ({"subscriptionsRevision": 10**30}, "subscriptionsRevision 10"),
        ({"migratedFrom": {"topic": "x", "partitions": -3}}, "-3 is not a number of partitions"),
        ({"state": "MIGRATING"}, "a record in state MIGRATING cannot be at epoch 0"),
    ],
)
def test_parts_that_do_not_fit(change: dict[str, Any], story: str) -> None:
    document = json.loads(with_operation())
    for name, value in change.items():
        document[name] = {**document[name], **value} if name == "operation" else value

    with pytest.raises(DecodeError, match=story):
        decode_record(json.dumps(document).encode())


def test_the_layout_before_a_migration_belongs_to_a_migrating_record() -> None:
    record = TopicRecord(incarnation=INCARNATION, layout=legacy_layout(["a", "b"]), state=TopicState.MIGRATING)

    assert decode_record(encode_record(record)) == record
    with pytest.raises(DecodeError, match="a record in state ACTIVE cannot be at epoch -1"):
        decode_record(encode_record(replace(record, state=TopicState.ACTIVE)))
    with pytest.raises(WrongState, match="by modulo"):
        record.layout.find_active(5)


def test_an_odd_spelling_of_an_id_is_refused() -> None:
    """It would survive its segment as a field nobody knows, and make the record unreadable."""
    document = json.dumps(VALID).replace('"0": {', '"-0": {', 1).encode()

    with pytest.raises(DecodeError, match="odd spelling"):
        decode_record(document)


def test_a_long_document_with_a_repeated_name_is_refused_at_once() -> None:
    fields = ",".join(f'"x{number}": 1' for number in range(50_000))
    document = json.dumps(VALID)[:-1] + "," + fields + ', "x49999": 2}'

    with pytest.raises(DecodeError, match="'x49999' occurs twice"):
        decode_record(document.encode())


def test_text_that_utf_8_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="UTF-8"):
        encode_record(TopicRecord(incarnation=INCARNATION, layout=initial_layout(1), properties={"a": "\ud800"}))


def test_an_incarnation_is_sixteen_hex_digits() -> None:
    assert TopicRecord(incarnation="0123456789abcdef").incarnation
    for wrong in ("", "0" * 15, "0" * 17, "000000000000000G", "000000000000000A"):
        with pytest.raises(InvalidArgument, match="16 lower-case hex digits"):
            TopicRecord(incarnation=wrong)


def finished(number: int, **fields: Any) -> FinishedOperation:
    return FinishedOperation(
        id=f"op-{number}", kind=OperationKind.SPLIT, outcome=Outcome.DONE, finished_at_ms=number, **fields
    )


def test_the_last_32_operations_are_remembered() -> None:
    """PROTOCOL 2, and nobody has to count."""
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(1))

    for number in range(40):
        record = remember(record, finished(number, request_key=f"key-{number}"))
        record = decode_record(encode_record(record))

    assert [operation.id for operation in record.recent_operations] == [f"op-{number}" for number in range(8, 40)]
    assert record.recent_operations[-1] == finished(39, request_key="key-39")


def test_a_record_with_more_than_32_finished_operations_is_not_made_and_is_read_as_the_newest() -> None:
    every = tuple(map(finished, range(33)))
    with pytest.raises(InvalidArgument, match="33 recent operations, above 32"):
        TopicRecord(incarnation=INCARNATION, recent_operations=every)
    document = json.loads(encode_record(TopicRecord(incarnation=INCARNATION, layout=initial_layout(1))))
    document["recentOperations"] = [msgspec.to_builtins(operation) for operation in every]

    read = decode_record(json.dumps(document).encode())

    assert read.recent_operations == every[1:]
    assert encode_record(read) == encode_record(
        TopicRecord(incarnation=INCARNATION, layout=initial_layout(1), recent_operations=every[1:])
    )


def test_an_operation_ends_once() -> None:
    record = remember(TopicRecord(incarnation=INCARNATION), finished(1))

    with pytest.raises(WrongState, match="operation 'op-1' has ended already"):
        remember(record, finished(1, request_key="another"))


def test_what_is_remembered_of_an_operation() -> None:
    aborted = FinishedOperation(
        id="a",
        kind=OperationKind.MIGRATION,
        outcome=Outcome.ABORTED,
        finished_at_ms=5,
        request_key="k",
        parent_runs=tuple(range(1_000)),
        reason="owner away",
    )
    skipped = FinishedOperation(
        id="b", kind=OperationKind.SKIP_ALL, outcome=Outcome.DONE, finished_at_ms=6, subscription="sub"
    )
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(1), recent_operations=(aborted, skipped))

    data = encode_record(record)

    assert decode_record(data) == record
    assert json.loads(data)["recentOperations"][0]["parents"] == [[0, 999]]
    assert aborted.parents == tuple(range(1_000))


def whole_topic(kind: OperationKind, **fields: Any) -> Operation:
    return Operation(
        **{
            "id": "op",
            "kind": kind,
            "phase": Phase.PREPARING,
            "replacements": (),
            "reason": "",
            "by": "alice",
            "started_at_ms": 1,
            "request_key": "key",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("kind", "state", "other"),
    [
        (OperationKind.CREATE, TopicState.CREATING, TopicState.ACTIVE),
        (OperationKind.DELETE, TopicState.DELETING, TopicState.CREATING),
    ],
)
def test_creating_and_deleting_are_operations_of_the_topic_as_a_whole(
    kind: OperationKind, state: TopicState, other: TopicState
) -> None:
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(2), state=state, operation=whole_topic(kind))

    assert decode_record(encode_record(record)) == record
    with pytest.raises(DecodeError, match=f"a record in state {other} cannot have a {kind} under way"):
        decode_record(encode_record(replace(record, state=other)))


@pytest.mark.parametrize(
    ("kind", "replaces", "story"),
    [
        (OperationKind.CREATE, True, "a CREATE replaces no segments"),
        (OperationKind.DELETE, True, "a DELETE replaces no segments"),
        (OperationKind.ROLLOVER, False, "a ROLLOVER without replacements changes nothing"),
        (OperationKind.SEEK, False, "a SEEK is no operation of a topic"),
        (OperationKind.SKIP_ALL, True, "a SKIP_ALL is no operation of a topic"),
    ],
)
def test_operations_that_cannot_be(kind: OperationKind, replaces: bool, story: str) -> None:
    change = rollover(initial_layout(1), [0], at_ms=1) if replaces else ()

    with pytest.raises(InvalidArgument, match=story):
        whole_topic(kind, replacements=change)


def test_a_rollover_under_way() -> None:
    layout = initial_layout(2)
    change = rollover(layout, [1], at_ms=1)
    operation = whole_topic(OperationKind.ROLLOVER, replacements=change)
    record = TopicRecord(incarnation=INCARNATION, layout=layout.announce(change), operation=operation)

    assert decode_record(encode_record(record)) == record


def test_equal_records_are_equal_bytes() -> None:
    """Which is what a compare on the value needs."""
    record = TopicRecord(incarnation=INCARNATION, layout=initial_layout(2), properties={"a": "1"})

    assert encode_record(record) == encode_record(decode_record(encode_record(record)))
    assert msgspec.json.decode(encode_record(record))["segments"]["1"]["hashRange"] == {"start": 32768, "end": 65535}
