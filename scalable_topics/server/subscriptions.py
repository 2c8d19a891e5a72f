"""`/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}`: make, move, delete one."""

from typing import Final

from aiohttp import web

from scalable_topics.control.controller import TopicController
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.subscription import InitialPosition, SubscriptionType
from scalable_topics.server.auth.middleware import acts
from scalable_topics.server.auth.table import Action
from scalable_topics.server.bodies import whole_number
from scalable_topics.server.leading import by_leader
from scalable_topics.server.topics import TOPIC

SUBSCRIPTION: Final = f"{TOPIC}/subscriptions/{{subscription}}"


@acts(Action.SUBSCRIBE)
@by_leader
async def subscribe(request: web.Request, controller: TopicController) -> web.Response:
    """204 when it is READY. One that is there already is left as it is; of another type it is 409."""
    kind = SubscriptionType.parse(request.query.get("type", SubscriptionType.STREAM))
    default = request.query.get("position", InitialPosition.EARLIEST)
    position = _position(request.query.get("initialPosition", default))
    await controller.subscriptions.create(request.match_info["subscription"], kind, position)
    return web.Response(status=204)


@acts(Action.UNSUBSCRIBE)
@by_leader
async def unsubscribe(request: web.Request, controller: TopicController) -> web.Response:
    await controller.subscriptions.delete(request.match_info["subscription"])
    return web.Response(status=204)


@acts(Action.SEEK)
@by_leader
async def seek(request: web.Request, controller: TopicController) -> web.Response:
    """`?timestamp=` in milliseconds."""
    text = request.query.get("timestamp")
    if text is None:
        raise InvalidArgument("no timestamp is given", remedy="add ?timestamp=MILLISECONDS, or use skip-all")
    return await _seek(request, controller, whole_number(text, name="timestamp"))


@acts(Action.SKIP_ALL)
@by_leader
async def skip_all(request: web.Request, controller: TopicController) -> web.Response:
    return await _seek(request, controller, None)


async def _seek(request: web.Request, controller: TopicController, to_ms: int | None) -> web.Response:
    name, key = request.match_info["subscription"], request.headers.get("Idempotency-Key")
    await controller.subscriptions.seek(name, to_ms, request_key=key)
    return web.Response(status=204)


def _position(text: str) -> InitialPosition:
    try:
        return InitialPosition(text.lower())
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a position", remedy=f"use one of {', '.join(InitialPosition)}"
        ) from None


ROUTES: Final = (
    web.put(SUBSCRIPTION, subscribe),
    web.delete(SUBSCRIPTION, unsubscribe),
    web.post(f"{SUBSCRIPTION}/seek", seek),
    web.post(f"{SUBSCRIPTION}/skip-all", skip_all),
)
