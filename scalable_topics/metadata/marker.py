"""The marker: one key that says whose store this is, in which format, and which of its lives this is.

A store that was restored from a backup has gone back in time: its revisions are used a second time for other writes.
The marker's *generation* tells the lives apart. Whoever notices that the store went back raises it (a daemon by
itself, or an operator with `scalable-topics store bump-generation`); everybody who sees a new generation lists again,
and clients order what they are told by (generation, revision).
"""

import logging
import secrets
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.store import CreateRevisionIs, KeyValue, MetadataStore, ModRevisionIs, Put
from scalable_topics.model.codec import decode_json, encode_json
from scalable_topics.model.errors import DecodeError, InvalidArgument, NotFound, UnknownOutcome, WrongState
from scalable_topics.model.limits import is_long
from scalable_topics.model.paths import StorePaths

FORMAT_VERSION: Final = 1

log = logging.getLogger(__name__)


class StoreMarker(Struct, frozen=True, rename="camel", kw_only=True):
    """What the marker key says. `InvalidArgument` for a version or a generation that cannot be."""

    format_version: int = FORMAT_VERSION
    cluster_name: str
    generation: int = 1
    life: str = ""
    """Random, of each generation: tells two apart that were given the same number, as after one backup was restored
    twice.
    """

    def __post_init__(self) -> None:
        if not (is_long(self.format_version) and is_long(self.generation) and self.generation):
            raise InvalidArgument("formatVersion and generation must be longs, and generation 1 or more")


_decoder: Final = msgspec.json.Decoder(StoreMarker)


def decode_marker(item: KeyValue) -> StoreMarker:
    """`DecodeError` for what is not a marker."""
    return decode_json(item.value, _decoder, subject=item.key)


def marker_of(item: KeyValue | None) -> StoreMarker | None:
    """None = there is no marker, or it cannot be read."""
    try:
        return decode_marker(item) if item is not None else None
    except DecodeError:
        return None


def generation_of(item: KeyValue | None) -> int:
    """The generation that a marker key tells; 0 = none."""
    marker = marker_of(item)
    return marker.generation if marker is not None else 0


async def ensure_marker(store: MetadataStore, paths: StorePaths, *, cluster_name: str) -> StoreMarker:
    """To be called once, before anything else is read or written under the root.

    Writes the marker where there is none. Raises `WrongState` for a root of another cluster or of another format, so
    that two clusters never share one root and an old daemon never misreads a newer one's keys; `DecodeError` for a
    marker that cannot be read; what the store raises.
    """
    ours = StoreMarker(cluster_name=cluster_name, life=_new_life())
    while True:
        items = (await store.get(paths.marker)).items
        if items:
            return _checked(decode_marker(items[0]), ours, paths)
        try:
            await store.commit([Put(paths.marker, encode_json(ours))], compares=[CreateRevisionIs(paths.marker, 0)])
        except UnknownOutcome:
            continue  # the next read tells


async def wait_for_marker(store: MetadataStore, paths: StorePaths, *, cluster_name: str) -> StoreMarker:
    """`ensure_marker` for a daemon that starts: a store that is away or full is waited for as long as that takes, and
    the reasons are logged. Raises what no waiting mends: `WrongState`, `DecodeError`.
    """
    backoff = Backoff()
    while True:
        try:
            return await ensure_marker(store, paths, cluster_name=cluster_name)
        except TRANSIENT as error:
            log.warning("waiting for the store root=%s: %s", paths.root, in_words(error))
        await backoff.wait()


def _checked(found: StoreMarker, ours: StoreMarker, paths: StorePaths) -> StoreMarker:
    if found.cluster_name != ours.cluster_name:
        raise WrongState(
            f"this root belongs to the cluster {found.cluster_name!r}, not to {ours.cluster_name!r}",
            subject=paths.root,
            remedy="give this cluster a root of its own, or correct its name",
        )
    if found.format_version != ours.format_version:
        raise WrongState(
            f"its keys have format {found.format_version}, and this version reads format {ours.format_version}",
            subject=paths.root,
            remedy="run the version that wrote it, or a newer one",
        )
    return found


async def bump_generation(store: MetadataStore, paths: StorePaths, *, known: StoreMarker | None = None) -> StoreMarker:
    """Say that the store was restored: everybody lists again, and clients accept lower revisions.

    `known` is the marker as the caller last saw it: the new generation is later than that one too, a marker that is
    gone or damaged is put back, and where somebody was faster nothing is written. Without it (an operator's command) a
    missing marker is `NotFound` and a damaged one `DecodeError`. An unknown outcome is looked up. Answers the marker
    that now stands; raises what the store raises.
    """
    while True:
        items = (await store.get(paths.marker)).items
        found = _readable(items, known, paths)
        if known is None:
            known = found
        elif found.generation > known.generation:
            return found
        bumped = replace(known, generation=known.generation + 1, life=_new_life())
        compare = ModRevisionIs(paths.marker, items[0].mod_revision if items else 0)
        try:
            await store.commit([Put(paths.marker, encode_json(bumped))], compares=[compare])
        except UnknownOutcome:
            log.warning("looking up whether the generation was raised root=%s", paths.root)


def _new_life() -> str:
    return secrets.token_hex(8)


def _readable(items: tuple[KeyValue, ...], known: StoreMarker | None, paths: StorePaths) -> StoreMarker:
    if not items and known is None:
        raise NotFound(
            "there is no marker", subject=paths.marker, remedy="is this the right root? a daemon writes it at start"
        )
    try:
        if items:
            return decode_marker(items[0])
    except DecodeError:
        if known is None:
            raise
    return StoreMarker(cluster_name=known.cluster_name if known else "")
