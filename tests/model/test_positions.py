"""Message ids and checkpoints as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.model.errors import DecodeError, InvalidArgument
from scalable_topics.model.positions import DONE, EARLIEST, LATEST, Checkpoint, MessageId, Sentinel

longs = st.integers(-(2**63), 2**63 - 1)
positions = st.tuples(longs, longs)
message_ids = st.builds(MessageId, longs, positions, st.dictionaries(longs, positions, max_size=3))
checkpoints = st.builds(
    Checkpoint, st.sampled_from(Sentinel) | st.dictionaries(longs, positions | st.just(DONE), max_size=4)
)


@given(message_ids)
def test_message_ids_survive(message_id: MessageId) -> None:
    decoded = MessageId.decode(message_id.encode())

    assert decoded == message_id
    assert decoded.vector == message_id.vector
    assert hash(decoded) == hash(message_id)


@given(checkpoints)
def test_checkpoints_survive(checkpoint: Checkpoint) -> None:
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


@given(message_ids, message_ids)
def test_message_ids_are_ordered_by_segment_then_position(a: MessageId, b: MessageId) -> None:
    key_a, key_b = (a.segment_id, a.position), (b.segment_id, b.position)

    assert (a < b, a <= b, a == b) == (key_a < key_b, key_a <= key_b, key_a == key_b)
    assert (a > b, a >= b, a != b) == (key_a > key_b, key_a >= key_b, key_a != key_b)
    assert MessageId(0, (0, 0)) > EARLIEST
    assert a != (a.segment_id, a.position)


@given(st.one_of(message_ids, checkpoints), st.data())
def test_cut_or_padded_bytes_are_refused(value: MessageId | Checkpoint, data: st.DataObject) -> None:
    whole = value.encode()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]

    for wrong in (cut, whole + b"\0"):
        with pytest.raises(DecodeError, match=r"at byte|unknown type"):
            type(value).decode(wrong)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for kind in (MessageId, Checkpoint):
        try:
            kind.decode(data)
        except DecodeError as error:
            assert error.subject in {"message id", "checkpoint"}


def test_a_message_id_needs_a_position() -> None:
    with pytest.raises(DecodeError, match="it has no position"):
        MessageId.decode(bytes(8) + bytes(4) + bytes(4))
    with pytest.raises(DecodeError, match="a position of 3 bytes"):
        MessageId.decode(bytes(8) + b"\0\0\0\3abc")
    with pytest.raises(DecodeError, match="-1 positions"):
        Checkpoint.decode(b"\0\xff\xff\xff\xff")
    with pytest.raises(InvalidArgument, match="two longs"):
        MessageId(0, (2**63, 0)).encode()
    with pytest.raises(InvalidArgument, match="ids are longs"):
        MessageId(2**63, (0, 0)).encode()
    with pytest.raises(InvalidArgument, match="ids are longs"):
        Checkpoint({2**63: DONE}).encode()
    with pytest.raises(DecodeError, match="segment 5 a second time"):
        Checkpoint.decode(bytes.fromhex("0000000002" + 2 * ("000000000000000500000000")))


def test_the_bytes_are_pulsars_layout() -> None:
    """Big-endian longs, a length before each inner id, a type byte before a checkpoint: upstream-facts 17."""
    assert MessageId(1, (2, 3)).encode().hex() == "0000000000000001000000100000000000000002000000000000000300000000"
    assert Checkpoint(Sentinel.EARLIEST).encode() == b"\1"
    assert Checkpoint(Sentinel.LATEST).encode() == b"\2"
    assert Checkpoint({5: DONE}).encode().hex() == "0000000001000000000000000500000000"
    assert LATEST.segment_id == EARLIEST.segment_id == -1
    assert LATEST.position == (2**63 - 1, 2**63 - 1)


def test_pitfall_89_what_was_read_to_its_end_is_not_read_again() -> None:
    resumption = Checkpoint({0: DONE, 1: (4, 2), 9: (1, 1), 8: DONE}).resume([0, 1, 2])

    assert resumption.start == {1: (4, 2), 2: Sentinel.EARLIEST}
    assert resumption.skipped == (8, 9)


def test_different_ids_hash_differently() -> None:
    assert len({hash(MessageId(number, (0, number))) for number in range(50)}) > 40


def test_resuming_from_a_sentinel() -> None:
    assert Checkpoint(Sentinel.LATEST).resume([3, 4]).start == {3: Sentinel.LATEST, 4: Sentinel.LATEST}
    assert Checkpoint(Sentinel.LATEST).resume([3]).skipped == ()
