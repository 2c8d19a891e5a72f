"""etcd's JSON gateway as typed values.

The gateway sends 64-bit numbers as text and leaves zero fields out, so decoding is lax about the one and has
defaults for the other. Keys and values are base64, which msgspec does for `bytes`.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from scalable_topics.metadata.store import (
    Answer,
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Deletion,
    KeyValue,
    LeaseIs,
    ModRevisionIs,
    Put,
    ValueIs,
    WatchBatch,
    Write,
)

Request = dict[str, Any]
"""A request body, on its way to JSON."""


class Header(Struct, frozen=True):
    cluster_id: int = 0
    revision: int = 0


class WireKeyValue(Struct, frozen=True):
    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0

    def plain(self) -> KeyValue | None:
        """None = its key is not text, so it is not ours."""
        try:
            key = self.key.decode()
        except UnicodeDecodeError:
            return None
        return KeyValue(key, self.value, self.create_revision, self.mod_revision, self.lease)


class RangeResponse(Struct, frozen=True):
    header: Header = Header()
    kvs: tuple[WireKeyValue, ...] = ()
    more: bool = False

    def items(self) -> list[KeyValue]:
        return [item for kv in self.kvs if (item := kv.plain()) is not None]


class OneResponse(Struct, frozen=True):
    response_range: RangeResponse | None = None


class TxnResponse(Struct, frozen=True):
    header: Header = Header()
    succeeded: bool = False
    responses: tuple[OneResponse, ...] = ()

    def found(self) -> tuple[KeyValue | None, ...]:
        """What the reads of the failure branch saw, in order."""
        ranges = (response.response_range or RangeResponse() for response in self.responses)
        return tuple(found.kvs[0].plain() if found.kvs else None for found in ranges)

    def answer(self) -> Answer:
        return Answer(self.succeeded, self.header.revision, () if self.succeeded else self.found())


class LeaseResponse(Struct, frozen=True):
    ID: int = 0
    TTL: int = 0


class KeepAliveResponse(Struct, frozen=True):
    """Without a result it tells nothing of the lease, and must not be read as its end."""

    result: LeaseResponse


class WatchEvent(Struct, frozen=True):
    kv: WireKeyValue = WireKeyValue()
    type: str = "PUT"

    def plain(self) -> KeyValue | Deletion | None:
        item = self.kv.plain()
        return Deletion(item.key, item.mod_revision) if item is not None and self.type == "DELETE" else item


class WatchResult(Struct, frozen=True):
    header: Header = Header()
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[WatchEvent, ...] = ()

    def batch(self) -> WatchBatch:
        """Its revision is that of the last event: while it catches up, etcd's header runs ahead of what it has sent."""
        events = tuple(item for event in self.events if (item := event.plain()) is not None)
        revision = self.events[-1].kv.mod_revision if self.events else self.header.revision
        return WatchBatch(revision, events, self.header.cluster_id)


class GatewayError(Struct, frozen=True):
    """The gateway's words for a gRPC status. Calls that are streams (watch, keep alive) wrap it once more."""

    message: str = ""
    code: int = 2
    grpc_code: int = 0
    error: "GatewayError | str" = ""


class WatchLine(Struct, frozen=True):
    result: WatchResult | None = None
    error: GatewayError | None = None


class StatusResponse(Struct, frozen=True):
    version: str = ""
    dbSize: int = 0  # noqa: N815 - the gateway's spelling
    dbSizeQuota: int = 0  # noqa: N815 - since etcd 3.6
    header: Header = Header()


class Alarm(Struct, frozen=True):
    alarm: str = ""


class AlarmResponse(Struct, frozen=True):
    alarms: tuple[Alarm, ...] = ()


class TokenResponse(Struct, frozen=True):
    token: str = ""


class Nothing(Struct, frozen=True):
    """An answer of which only the arrival matters."""


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys with this prefix. Keys are text, so there is always a last byte to raise."""
    key = prefix.encode()
    return key[:-1] + bytes([key[-1] + 1])


def range_request(key: str, *, revision: int = 0) -> Request:
    """0 = as it is now."""
    return {"key": key.encode(), "revision": revision} if revision else {"key": key.encode()}


def read_request(keys: Sequence[str], *, revision: int = 0) -> Request:
    """Several keys at one revision: a transaction that always takes its first branch."""
    return {"success": [{"request_range": range_request(key, revision=revision)} for key in keys]}


def commit_request(writes: Sequence[Write], compares: Sequence[Compare]) -> Request:
    return {
        "compare": [_compare(compare) for compare in compares],
        "success": [_write(write) for write in writes],
        "failure": [{"request_range": range_request(compare.key)} for compare in compares],
    }


def _compare(compare: Compare) -> Request:
    common = {"key": compare.key.encode(), "result": "EQUAL"}
    match compare:
        case ValueIs(value=value):
            return {**common, "target": "VALUE", "value": value}
        case ModRevisionIs(revision=revision):
            return {**common, "target": "MOD", "mod_revision": revision}
        case CreateRevisionIs(revision=revision):
            return {**common, "target": "CREATE", "create_revision": revision}
        case LeaseIs(lease=lease):
            return {**common, "target": "LEASE", "lease": lease}


def _write(write: Write) -> Request:
    match write:
        case Put(key=key, value=value, lease=lease):
            return {"request_put": {"key": key.encode(), "value": value, "lease": lease}}
        case Delete(key=key):
            return {"request_delete_range": {"key": key.encode()}}
        case DeletePrefix(prefix=prefix):
            return {"request_delete_range": {"key": prefix.encode(), "range_end": prefix_end(prefix)}}
