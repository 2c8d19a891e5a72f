"""Names: what is accepted, what is refused, and that nothing gets lost on the way to a store and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.model.errors import InvalidArgument, ScalableTopicsError, Unsupported
from scalable_topics.model.hash_range import FULL_RANGE, HashRange
from scalable_topics.model.layout import initial_layout, legacy_layout
from scalable_topics.model.names import (
    Domain,
    SegmentName,
    TopicName,
    client_topic,
    decode,
    encode,
    parse_descriptor,
    parse_name,
    topic_list_hash,
)
from scalable_topics.model.paths import StorePaths
from scalable_topics.model.segment import segment_address

entities = st.text("abcXYZ019-=:._", min_size=1, max_size=6).filter(lambda text: text not in {".", ".."})
locals_ = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10).filter(
    lambda text: text == text.strip() and text.strip() and "\0" not in text and text not in {".", ".."}
)
topics = st.builds(TopicName, st.just(Domain.TOPIC), entities, entities, locals_)
ranges = st.tuples(st.integers(0, 65535), st.integers(0, 65535)).map(lambda pair: HashRange(min(pair), max(pair)))
segments = st.builds(SegmentName, topics, ranges, st.integers(0, 10**18))


@given(topics | segments)
def test_names_survive_being_written_and_read(name: TopicName | SegmentName) -> None:
    assert parse_name(str(name)) == name


@given(segments)
def test_segment_names_survive_the_store(name: SegmentName) -> None:
    assert SegmentName.decode(name.storage_name) == name
    assert name.storage_name.count("/") == 4
    assert name.schema_name == name.parent.storage_name == name.parent.schema_name


@given(topics, topics, st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_store_keys_of_different_things_never_meet(a: TopicName, b: TopicName, sub: str, other: str) -> None:
    paths = StorePaths("/root/")
    keys = [paths.record(a), paths.subscription(a, sub), paths.consumer(a, sub, other), paths.drained(a, 1, sub)]

    assert len({key.count("/") for key in keys}) == len(keys) - 1
    if a != b:
        assert not paths.record(b).startswith(paths.record(a) + "/")
        assert paths.record(a) != paths.record(b)
    assert decode(encode(sub)) == sub


def test_every_kind_of_store_key() -> None:
    paths, topic = StorePaths(), TopicName.parse("topic://t:1/n=2/a b/c")

    assert paths.record(topic) == "/scalable-topics/topics/t%3A1/n%3D2/a%20b%2Fc"
    assert paths.owner(topic, 7) == paths.record(topic) + "/segments/7/owner"
    assert paths.journal(topic, 12) == "/scalable-topics/journal/t%3A1/n%3D2/a%20b%2Fc/00000000000000000012"
    assert paths.garbage("00ff00ff00ff00ff") == "/scalable-topics/garbage/00ff00ff00ff00ff"
    assert paths.broker("host:8080") == "/scalable-topics/brokers/host%3A8080"
    assert paths.reporter("b1") == "/scalable-topics/brokers/b1/reporter"
    assert paths.policies("t:1", "n") == "/scalable-topics/namespaces/t%3A1/n/policies"
    assert StorePaths("/boX///").root == "/boX"


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("", "blank"),
        ("   ", "blank"),
        ("a/b", "tenant/namespace/name"),
        ("a/b/c/d", "tenant/namespace/name"),
        ("queue://t/n/x", "unknown domain 'queue'"),
        ("topic://t/n", "write topic://tenant/namespace/name"),
        ("topic:///n/x", "'' is not a tenant"),
        ("topic://t//x", "'' is not a namespace"),
        ("topic://t t/n/x", "'t t' is not a tenant"),
        ("topic://../n/x", "'..' is not a tenant"),
        ("topic://t/é/x", "'é' is not a namespace"),
        ("topic://t/n/ ", "blank"),
        ("topic://t/n/..", "a path would lose it"),
        ("topic://t/n/.", "a path would lose it"),
        ("topic://t/n/a\0b", "NUL"),
        ("topic://t/n/\ud800", "surrogate"),
        ("segment://t/n/x", "is not a segment descriptor"),
        ("segment://t/n/0000-ffff-0", "write topic://tenant/namespace/name"),
        ("segment://t/n/x/0000-ffff", "is not a segment descriptor"),
        ("segment://t/n/x/0000-ffff-01", "is not a segment descriptor"),
        ("segment://t/n/x/0000-FFFF-1", "is not a segment descriptor"),
        ("segment://t/n/x/0000-fff-1", "is not a segment descriptor"),
        ("segment://t/n/x/0000-ffff--1", "is not a segment descriptor"),
        ("segment://t/n/x/ffff-0000-1", "is not a hash range"),
        ("segment://t/n/x/0000-ffff-0\n", "is not a segment descriptor"),
    ],
)
def test_names_that_are_refused(text: str, story: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_name(text)
    assert story in str(caught.value)


@pytest.mark.parametrize("outer", [" x", "x ", "\tx", "x\n"])
def test_pitfall_94_names_with_outer_white_space_cannot_be_created(outer: str) -> None:
    with pytest.raises(InvalidArgument, match="starts or ends with white space"):
        TopicName.parse(f"topic://t/n/{outer}")
    old = TopicName.parse(f"persistent://t/n/{outer}")
    with pytest.raises(InvalidArgument, match="starts or ends with white space"):
        old.to_scalable()


def test_local_names_may_hold_slashes_and_the_descriptor_follows_the_last() -> None:
    name = SegmentName.parse("segment://t/n/a/b/0000-7fff-3")

    assert (name.parent.local, name.descriptor, name.segment_id) == ("a/b", "0000-7fff-3", 3)
    assert name.domain is Domain.SEGMENT
    assert name.storage_name == "t/n/segment/a%2Fb/0000-7fff-3"


@pytest.mark.parametrize(
    "wrong", ["t/n/segment/x", "t/n/topic/x/0000-ffff-0", "t/n/segment/x/y/0000-ffff-0", "t/n/segment/%ff/0000-ffff-0"]
)
def test_storage_names_that_are_not_segments(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=r"storage name|percent-encoded"):
        SegmentName.decode(wrong)


@pytest.mark.parametrize(
    ("text", "scalable", "partition"),
    [
        ("x", "topic://public/default/x", None),
        ("x-partition-3", "topic://public/default/x", 3),
        ("t/n/x-partition-0", "topic://t/n/x", 0),
        ("t/n/x-partition-03", "topic://t/n/x-partition-03", None),
        ("t/n/x-partition-", "topic://t/n/x-partition-", None),
        ("t/n/x-partition-" + "9" * 5_000, "topic://t/n/x-partition-" + "9" * 5_000, None),
        ("t/n/-partition-1", "topic://t/n/-partition-1", None),
        ("topic://t/n/x-partition-3", "topic://t/n/x-partition-3", None),
        ("persistent://t/n/x-partition-1-partition-2", "topic://t/n/x-partition-1", 2),
    ],
)
def test_scalable_names_of_regular_ones(text: str, scalable: str, partition: int | None) -> None:
    name = TopicName.parse(text)

    assert str(name.to_scalable()) == scalable
    assert name.partition == partition


def test_a_name_may_hold_what_looks_like_a_domain() -> None:
    assert TopicName.parse("topic://t/n/a://b").local == "a://b"
    assert SegmentName.parse("segment://t/n/a://b/0000-ffff-0").parent.local == "a://b"


def test_what_cannot_be_scalable_or_opened() -> None:
    fleeting = TopicName.parse("non-persistent://t/n/x")

    assert not fleeting.is_persistent
    with pytest.raises(Unsupported, match=r"non-persistent://t/n/x: .*use a persistent:// topic"):
        fleeting.to_scalable()
    with pytest.raises(Unsupported, match="non-persistent"):
        client_topic("non-persistent://t/n/x")
    with pytest.raises(Unsupported, match="segments cannot be opened by themselves"):
        client_topic("segment://t/n/x/0000-ffff-0")
    with pytest.raises(InvalidArgument, match="does not name a segment"):
        SegmentName.parse("topic://t/n/x")
    with pytest.raises(InvalidArgument, match="needs a descriptor"):
        TopicName(Domain.SEGMENT, "t", "n", "x")
    with pytest.raises(InvalidArgument, match="has no segments"):
        SegmentName(TopicName.parse("x"), FULL_RANGE, 0)
    with pytest.raises(InvalidArgument, match="-1 is not a segment id"):
        SegmentName(TopicName.parse("topic://t/n/x"), FULL_RANGE, -1)


@given(st.text())
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = parse_name(text)
    except ScalableTopicsError as error:
        assert str(error)
    else:
        assert parse_name(str(name)) == name


@pytest.mark.parametrize("bad", ["", "x", "0000-ffff-9999999999999999999999"])
def test_descriptors_that_are_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="start-end-id"):
        parse_descriptor(bad)


def test_encoding_refuses_what_utf_8_cannot_say() -> None:
    with pytest.raises(InvalidArgument, match="UTF-8"):
        encode("\ud800")


def test_topic_list_hash_of_nothing() -> None:
    assert topic_list_hash([]) == "00000000"
    with pytest.raises(InvalidArgument, match="UTF-8"):
        topic_list_hash(["\ud800"])
    with pytest.raises(InvalidArgument, match="ids are longs"):
        parse_name("segment://t/n/x/0000-ffff-9999999999999999999")
    assert topic_list_hash(["b", "a"]) == topic_list_hash(["a", "b"]) != topic_list_hash(["a"])


def test_pitfall_76_a_legacy_segment_is_reached_under_its_old_name() -> None:
    (old,) = legacy_layout(["persistent://t/n/x-partition-0"]).active

    legacy = segment_address(TopicName.parse("topic://t/n/x"), old, incarnation="00000000000000aa")

    assert legacy.logical == legacy.physical == "persistent://t/n/x-partition-0"


def test_pitfall_14_the_address_comes_from_the_segments_record() -> None:
    topic = TopicName.parse("topic://t/n/x")
    (segment,) = initial_layout(1).active

    one = segment_address(topic, segment, incarnation="00000000000000aa")
    other = segment_address(topic, segment, incarnation="00000000000000ab")

    assert one.logical == other.logical == "segment://t/n/x/0000-ffff-0"
    assert one.physical == "segment://t/n/x/0000-ffff-0@00000000000000aa" != other.physical


@given(topics, st.integers(0, 99))
def test_a_key_tells_whose_it_is(topic: TopicName, segment_id: int) -> None:
    paths = StorePaths("/r")

    assert paths.topic_of(paths.record(topic)) == (topic, "")
    assert paths.topic_of(paths.controller(topic)) == (topic, "controller")
    assert paths.topic_of(paths.load(topic, segment_id)) == (topic, f"segments/{segment_id}/load")
    assert paths.topic_of_index(paths.index(topic)) == topic
    assert paths.index(topic).startswith(paths.index_of(topic.tenant, topic.namespace))


def test_keys_that_are_nobodys() -> None:
    paths = StorePaths("/r")

    assert (paths.topics, paths.brokers) == ("/r/topics/", "/r/brokers/")
    assert paths.index_of("t:1", "n") == "/r/index/t%3A1/n/"
    for key in ("/r/topics/t/n", "/other/topics/t/n/x", "/r/brokers/b", "/r/index/t/n/x"):
        assert paths.topic_of(key) is None
    assert paths.topic_of_index("/r/index/t/n") is None
    assert paths.broker_of(paths.broker("host:1/ü")) == "host:1/ü"
    for key in (paths.reporter("b"), "/r/topics/t/n/x", "/other/brokers/b"):
        assert paths.broker_of(key) is None
