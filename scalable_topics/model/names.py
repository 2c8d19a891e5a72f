"""Names of topics and segments: how people write them, how Pulsar writes them, how the store does.

`topic://tenant/namespace/name` is a scalable topic, `segment://tenant/namespace/name/0000-7fff-1` one of its
segments, `persistent://…` a regular topic. A local name may hold `/`; a segment's descriptor is what follows the
last one.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self
from urllib.parse import quote, unquote

import google_crc32c
from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument, Unsupported
from scalable_topics.model.hash_range import HashRange
from scalable_topics.model.limits import is_long

DEFAULT_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"

_NAMED_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_DESCRIPTOR: Final = re.compile(r"([0-9a-f]{4}-[0-9a-f]{4})-(0|[1-9][0-9]{0,18})")
PARTITION_SUFFIX: Final = "-partition-"
_PARTITION: Final = re.compile(rf"(.+){PARTITION_SUFFIX}(0|[1-9][0-9]{{0,8}})", re.DOTALL)


class Domain(StrEnum):
    TOPIC = "topic"
    SEGMENT = "segment"
    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


class TopicName(Struct, frozen=True, order=True):
    """A whole topic, scalable or regular; for a segment see `SegmentName`."""

    domain: Domain
    tenant: str
    namespace: str
    local: str

    def __post_init__(self) -> None:
        if self.domain is Domain.SEGMENT:
            raise InvalidArgument(
                "a segment's name needs a descriptor", remedy="use segment://tenant/ns/topic/0000-ffff-0"
            )
        for what, text in (("tenant", self.tenant), ("namespace", self.namespace)):
            if not _NAMED_ENTITY.fullmatch(text) or text in {".", ".."}:
                raise InvalidArgument(f"{text!r} is not a {what}", remedy="use letters, digits and - = : . _")
        problem = _local_name_problem(self.local, scalable=self.domain is Domain.TOPIC)
        if problem:
            raise InvalidArgument(f"{self.local!r} is not a topic's local name: {problem}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a full or a short name; a short one is a `persistent://` topic, as for every Pulsar client."""
        domain_text, separator, rest = text.partition("://")
        if not separator:
            parts = text.split("/")
            if len(parts) == 1:
                return cls(Domain.PERSISTENT, DEFAULT_TENANT, DEFAULT_NAMESPACE, text)
            if len(parts) == 3:
                return cls(Domain.PERSISTENT, *parts)
            raise InvalidArgument(
                f"{text!r} is not a topic name", remedy="write name, tenant/namespace/name or a full name"
            )
        try:
            domain = Domain(domain_text)
        except ValueError:
            raise InvalidArgument(
                f"{text!r} has the unknown domain {domain_text!r}", remedy="use topic://, persistent:// or segment://"
            ) from None
        parts = rest.split("/", 2)
        if len(parts) != 3:
            raise InvalidArgument(f"{text!r} is not a topic name", remedy=f"write {domain}://tenant/namespace/name")
        return cls(domain, *parts)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def is_persistent(self) -> bool:
        return self.domain is not Domain.NON_PERSISTENT

    @property
    def is_scalable(self) -> bool:
        return self.domain is Domain.TOPIC

    @property
    def storage_name(self) -> str:
        """What a store calls it: `tenant/namespace/encoded-local`."""
        return f"{self.tenant}/{self.namespace}/{encode(self.local)}"

    @property
    def schema_name(self) -> str:
        return self.storage_name

    @property
    def partition(self) -> int | None:
        """K, when this names one partition (`…-partition-K`) of a regular topic."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match and self.domain is not Domain.TOPIC else None

    def to_scalable(self) -> "TopicName":
        """The scalable topic that this name stands for, or will stand for after a migration."""
        if self.domain is Domain.TOPIC:
            return self
        if self.domain is Domain.NON_PERSISTENT:
            raise _non_persistent(self)
        match = _PARTITION.fullmatch(self.local)
        return TopicName(Domain.TOPIC, self.tenant, self.namespace, match[1] if match else self.local)

    def partition_name(self, index: int) -> "TopicName":
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}{PARTITION_SUFFIX}{index}")


class SegmentName(Struct, frozen=True, order=True):
    """One segment of a scalable topic."""

    parent: TopicName
    hash_range: HashRange
    segment_id: int

    def __post_init__(self) -> None:
        if self.parent.domain is not Domain.TOPIC:
            raise InvalidArgument(f"{self.parent} has no segments", remedy="only topic:// names have segments")
        if not is_long(self.segment_id):
            raise InvalidArgument(f"{self.segment_id} is not a segment id", remedy="ids are longs of 0 or more")

    @classmethod
    def parse(cls, text: str) -> Self:
        domain, separator, rest = text.partition("://")
        if not separator or domain != Domain.SEGMENT:
            raise InvalidArgument(
                f"{text!r} does not name a segment", remedy="use segment://tenant/namespace/topic/0000-ffff-0"
            )
        parent, _, descriptor = rest.rpartition("/")
        hash_range, segment_id = parse_descriptor(descriptor)
        return cls(TopicName.parse(f"{Domain.TOPIC}://{parent}"), hash_range, segment_id)

    @classmethod
    def decode(cls, storage_name: str) -> Self:
        """The inverse of `storage_name`."""
        match storage_name.split("/"):
            case [tenant, namespace, Domain.SEGMENT, local, descriptor]:
                hash_range, segment_id = parse_descriptor(descriptor)
                return cls(TopicName(Domain.TOPIC, tenant, namespace, decode(local)), hash_range, segment_id)
        raise InvalidArgument(
            f"{storage_name!r} is not a segment's storage name",
            remedy="expected tenant/namespace/segment/topic/0000-ffff-0",
        )

    def __str__(self) -> str:
        parent = self.parent
        return f"{Domain.SEGMENT}://{parent.tenant}/{parent.namespace}/{parent.local}/{self.descriptor}"

    @property
    def domain(self) -> Domain:
        return Domain.SEGMENT

    @property
    def descriptor(self) -> str:
        return descriptor_of(self.hash_range, self.segment_id)

    @property
    def is_persistent(self) -> bool:
        return True

    @property
    def is_scalable(self) -> bool:
        return False

    @property
    def storage_name(self) -> str:
        parent = self.parent
        return f"{parent.tenant}/{parent.namespace}/{Domain.SEGMENT}/{encode(parent.local)}/{self.descriptor}"

    @property
    def schema_name(self) -> str:
        """All segments of a topic share its schema."""
        return self.parent.storage_name


def parse_name(text: str) -> TopicName | SegmentName:
    """Read any name: of a topic in any domain, or of a segment."""
    return SegmentName.parse(text) if text.startswith(f"{Domain.SEGMENT}://") else TopicName.parse(text)


def client_topic(text: str) -> TopicName:
    """What an application may open: a scalable or a persistent topic, by its full or its short name."""
    if text.startswith(f"{Domain.SEGMENT}://"):
        raise Unsupported(
            "segments cannot be opened by themselves", subject=text, remedy="open the topic:// they belong to"
        )
    name = TopicName.parse(text)
    if name.domain is Domain.NON_PERSISTENT:
        raise _non_persistent(name)
    return name


def descriptor_of(hash_range: HashRange, segment_id: int) -> str:
    return f"{hash_range.hex}-{segment_id}"


def parse_descriptor(text: str) -> tuple[HashRange, int]:
    match = _DESCRIPTOR.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{text!r} is not a segment descriptor", remedy="write start-end-id: 0000-7fff-1")
    return HashRange.parse(match[1]), int(match[2])


@lru_cache(maxsize=4_096)
def encode(name: str) -> str:
    """Percent-encode a name so that it is one path element; reversible. Every key of a topic needs three of them."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name!r} is not text that UTF-8 can encode") from error


def decode(encoded: str) -> str:
    try:
        return unquote(encoded, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{encoded!r} is not percent-encoded UTF-8") from error


def inner_producer_name(name: str, segment_id: int) -> str:
    """What the part of a producer that writes to one segment is called there."""
    return f"{name}-seg-{segment_id}"


def outer_producer_name(inner_name: str, segment_id: int) -> str:
    """The application's name of a producer seen on a segment; another suffix, or nothing before it, was never ours."""
    return inner_name.removesuffix(f"-seg-{segment_id}") or inner_name


def topic_list_hash(names: list[str]) -> str:
    """What a client sends to learn whether its list of topics is still the current one (CRC32C, little-endian hex)."""
    try:
        joined = ",".join(sorted(names)).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("a topic's name is not text that UTF-8 can encode") from error
    checksum: int = google_crc32c.value(joined)
    return checksum.to_bytes(4, "little").hex()


def _local_name_problem(local: str, *, scalable: bool) -> str | None:
    if not local.strip():
        return "it is blank"
    if local in {".", ".."}:
        return "a path would lose it"
    if scalable and local != local.strip():
        return "it starts or ends with white space"
    if "\0" in local:
        return "it holds a NUL"
    try:
        local.encode()
    except UnicodeEncodeError:
        return "it holds half a surrogate pair"
    return None


def _non_persistent(name: TopicName) -> Unsupported:
    return Unsupported(
        "non-persistent topics cannot be scalable", subject=str(name), remedy="use a persistent:// topic"
    )
