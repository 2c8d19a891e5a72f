"""Changes of a topic's segments: ask for one, see what it would do, watch it, stop it.

Pulsar's admin tools expect 204 of a change. Who gives an `Idempotency-Key` wants to know what became of it, and gets
the operation.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from scalable_topics.control import phases
from scalable_topics.control.controller import Plan, Request, TopicController, etag
from scalable_topics.model.errors import InvalidArgument, WrongState
from scalable_topics.model.layout import Replacement
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Phase
from scalable_topics.model.segment import SegmentInfo
from scalable_topics.model.subscription import SubscriptionState
from scalable_topics.server.auth.middleware import acts, caller_of
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import CollectAnswer, json_response, read_body, whole_number
from scalable_topics.server.errors import Handler
from scalable_topics.server.leading import asked, by_leader, flag
from scalable_topics.server.topics import TOPIC

_segments: Final = msgspec.json.Decoder(list[int])


class PlannedReplacement(Struct, frozen=True):
    parents: tuple[int, ...]
    children: tuple[SegmentInfo, ...]


class PlanAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    """What a change would do, asked for with `?dryRun=true`. Nothing is kept of it: ids may be others in the end."""

    kind: OperationKind
    etag: str
    """Of what it was planned on, for `If-Match` of the change itself."""
    replacements: tuple[PlannedReplacement, ...]
    subscriptions: tuple[str, ...]
    """That get a cursor on every child."""


class RunningAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    kind: OperationKind
    phase: Phase
    stage: str | None
    """Where it is within its phase; None = nobody carries it out at this moment."""
    story: tuple[str, ...]
    """What happened so far, oldest first."""
    replacements: tuple[PlannedReplacement, ...]
    reason: str
    by: str
    started_at_ms: int
    request_key: str | None


class QueuedAnswer(Struct, frozen=True, rename="camel", kw_only=True):
    kind: OperationKind
    by: str
    reason: str
    request_key: str | None


class OperationsAnswer(Struct, frozen=True):
    running: RunningAnswer | None
    queued: tuple[QueuedAnswer, ...]
    recent: tuple[FinishedOperation, ...]
    """Newest first."""


@acts(Action.SPLIT)
@by_leader
async def split(request: web.Request, controller: TopicController) -> web.Response:
    """`?ways=k`: into k parts (2)."""
    wish = asked(request)
    ways = {_segment_id(request, "id"): whole_number(request.query.get("ways", "2"), name="ways")}
    return await _change(
        request,
        controller,
        OperationKind.SPLIT,
        controller.plan_split(ways, wish),
        lambda: controller.split(ways, wish),
    )


@acts(Action.MERGE)
@by_leader
async def merge(request: web.Request, controller: TopicController) -> web.Response:
    return await _merge(request, controller, [_segment_id(request, "a"), _segment_id(request, "b")])


@acts(Action.MERGE)
@by_leader
async def merge_several(request: web.Request, controller: TopicController) -> web.Response:
    """Adjacent segments, by their ids in a JSON list."""
    return await _merge(request, controller, await read_body(request, _segments))


@acts(Action.REBUCKET)
@by_leader
async def rebucket(request: web.Request, controller: TopicController) -> web.Response:
    wish, segment_ids = asked(request), [_segment_id(request, "id")]
    text = request.query.get("bucketCount")
    if text is None:
        raise InvalidArgument("no bucketCount is given", remedy="add ?bucketCount=N")
    buckets = whole_number(text, name="bucketCount")
    return await _change(
        request,
        controller,
        OperationKind.REBUCKET,
        controller.plan_rebucket(segment_ids, buckets),
        lambda: controller.rebucket(segment_ids, buckets, wish),
    )


@acts(Action.LIST_OPERATIONS)
@by_leader
async def list_operations(_: web.Request, controller: TopicController) -> web.Response:
    """What is under way, what waits for its turn, and what has ended."""
    record = controller.record
    queued = tuple(
        QueuedAnswer(kind=one.kind, by=one.request.by, reason=one.request.reason, request_key=one.request.key)
        for one in controller.queued
    )
    running = _running(record.operation, controller) if record.operation is not None else None
    return json_response(OperationsAnswer(running, queued, record.recent_operations[::-1]))


@acts(Action.ABORT_OPERATION)
@by_leader
async def abort(request: web.Request, controller: TopicController) -> web.Response:
    """204 = it is asked to stop, which it does unless it passes the point of no return first: 409 from then on."""
    reason = request.query.get("reason") or f"asked for by {caller_of(request)}"
    controller.abort(request.match_info["id"], reason)
    return web.Response(status=204)


@acts(Action.COLLECT)
@by_leader
async def collect(_: web.Request, controller: TopicController) -> web.Response:
    """One round of the collector, now."""
    swept = await controller.collector.round()
    return json_response(CollectAnswer(swept.pruned, swept.deleted, swept.orphans))


async def _merge(request: web.Request, controller: TopicController, segment_ids: list[int]) -> web.Response:
    wish = asked(request)
    return await _change(
        request,
        controller,
        OperationKind.MERGE,
        controller.plan_merge(segment_ids, wish),
        lambda: controller.merge(segment_ids, wish),
    )


async def _change(
    request: web.Request,
    controller: TopicController,
    kind: OperationKind,
    plan: Plan,
    do: Callable[[], Awaitable[FinishedOperation]],
) -> web.Response:
    if flag(request, "dryRun"):
        return json_response(await _planned(controller, kind, plan, asked(request)))
    finished = await do()
    return json_response(finished) if "Idempotency-Key" in request.headers else web.Response(status=204)


async def _planned(controller: TopicController, kind: OperationKind, plan: Plan, request: Request) -> PlanAnswer:
    """With every veto that the change itself would meet, were it begun now."""
    record, topic = controller.record, controller.topic.topic
    tag = etag(record)
    if request.if_match not in {None, tag}:
        raise WrongState(f"it is at {tag}, not at {request.if_match}", subject=str(topic), remedy="read it again")
    operation = Operation(
        id="dry-run",
        kind=kind,
        phase=Phase.PREPARING,
        replacements=plan(record.layout),
        reason=request.reason,
        by=request.by,
        started_at_ms=controller.topic.around.now_ms(),
    )
    phases.begin(topic, replace(record, operation=None), operation)  # what is under way would be waited for
    known = await controller.topic.around.repository.subscriptions(topic)
    ready = (name for name, one in known.items() if one.value.state is not SubscriptionState.DELETING)
    return PlanAnswer(
        kind=kind, etag=tag, replacements=_told(operation.replacements), subscriptions=tuple(sorted(ready))
    )


def _running(operation: Operation, controller: TopicController) -> RunningAnswer:
    executor = controller.executor
    at_work = executor is not None and executor.operation_id == operation.id
    return RunningAnswer(
        id=operation.id,
        kind=operation.kind,
        phase=operation.phase,
        stage=str(executor.stage) if executor is not None and at_work else None,
        story=executor.story if executor is not None and at_work else (),
        replacements=_told(operation.replacements),
        reason=operation.reason,
        by=operation.by,
        started_at_ms=operation.started_at_ms,
        request_key=operation.request_key,
    )


def _told(replacements: tuple[Replacement, ...]) -> tuple[PlannedReplacement, ...]:
    return tuple(PlannedReplacement(one.parents, one.children) for one in replacements)


def _segment_id(request: web.Request, name: str) -> int:
    return whole_number(request.match_info[name], name="segment")


PLANNED: Final = frozenset({split, merge, merge_several, rebucket})
"""The handlers that know `?dryRun=true`."""


@web.middleware
async def refuse_unplanned(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A dry run of what cannot be planned is refused: it would be done."""
    if request.match_info.handler not in PLANNED and request.query.get("dryRun", "false") != "false":
        raise InvalidArgument("there is no dry run of this", subject=request.path, remedy="leave dryRun out")
    return await handler(request)


ROUTES: Final = (
    web.post(f"{TOPIC}/split/{{id}}", split),
    web.post(f"{TOPIC}/merge/{{a}}/{{b}}", merge),
    web.post(f"{TOPIC}/merge", merge_several),
    web.post(f"{TOPIC}/rebucket/{{id}}", rebucket),
    web.get(f"{TOPIC}/operations", list_operations, allow_head=False),
    web.post(f"{TOPIC}/operations/{{id}}/abort", abort),
    web.post(f"{TOPIC}/collect", collect),
)
