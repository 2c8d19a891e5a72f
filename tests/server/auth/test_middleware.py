"""Security in front of real HTTP: a small application, two daemons' worth of it where they talk to each other."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from scalable_topics.model.administration import TenantInfo
from scalable_topics.model.errors import Forbidden, InvalidArgument, ScalableTopicsError, WrongState
from scalable_topics.server.auth.audit import LOGGER_NAME
from scalable_topics.server.auth.caller import daemon, role
from scalable_topics.server.auth.errors import Unauthenticated
from scalable_topics.server.auth.forwarding import CALL_HEADER, HOP_HEADER, Call
from scalable_topics.server.auth.middleware import (
    _Attempt,
    acts,
    caller_of,
    forward_headers,
    secure,
    security_middleware,
    undeclared_routes,
    was_forwarded,
)
from scalable_topics.server.auth.security import Security, SecuritySettings, process_identity
from scalable_topics.server.auth.table import Action
from tests.server.auth.makers import NOW, OTHER_SECRET, SECRET, Clock, Grants, hs256, written

TOPIC: Final = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
SPLIT: Final = "/admin/v2/scalable/t/n/orders/split/0"
ALICE: Final = {"Authorization": f"Bearer {hs256({'sub': 'alice'})}"}
EVE: Final = {"Authorization": f"Bearer {hs256({'sub': 'eve'})}"}

Client = TestClient[web.Request, web.Application]


@web.middleware
async def plain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    statuses = {Unauthenticated: 401, Forbidden: 403, InvalidArgument: 412}
    try:
        return await handler(request)
    except ScalableTopicsError as error:
        return web.Response(status=statuses.get(type(error), 409), text=str(error))


@acts(Action.SPLIT)
async def split(request: web.Request) -> web.Response:
    if request.query.get("fail"):
        raise WrongState("busy")
    if request.query.get("hang"):
        await asyncio.sleep(60)
    caller = caller_of(request)
    told = f"{caller} via={caller.via} from={caller.address} hop={was_forwarded(request)}"
    return web.Response(text=f"{told} body={await request.text()}")


@acts(Action.GET_METADATA)
async def read(request: web.Request) -> web.Response:
    return web.Response(text=str(caller_of(request)))


@acts(Action.CHECK_HEALTH)
async def health(request: web.Request) -> web.Response:
    return web.Response(text=str(caller_of(request)))


async def undeclared(_: web.Request) -> web.Response:
    return web.Response(text="reached")


def grants() -> Grants:
    made = Grants()
    made.tenants["t"] = TenantInfo(admin_roles=("alice",))
    return made


def security_of(tmp_path: Path, name: str = "b1", *, secret: bool = False, tokens: bool = True) -> Security:
    settings = SecuritySettings(
        token_secret_key=written(tmp_path / "key", SECRET) if tokens else None,
        cluster_secret=written(tmp_path / "cluster", b"c" * 32) if secret else None,
        super_user_roles=("root",),
    )
    return Security(settings, grants(), broker_id=name, process="p", wall_clock=Clock(), clock=Clock())


@asynccontextmanager
async def serving(security: Security, *routes: web.RouteDef) -> AsyncIterator[Client]:
    app = web.Application(middlewares=[plain_errors], client_max_size=1_000)
    app.add_routes(
        [web.post(f"{TOPIC}/split/{{id}}", split), web.get(TOPIC, read), web.get("/health", health), *routes]
    )
    secure(app, security)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_no_token_or_a_bad_one_is_401_and_no_right_is_403(tmp_path: Path) -> None:
    bad = {"Authorization": f"Bearer {hs256({'sub': 'alice'}, OTHER_SECRET)}"}
    old = {"Authorization": f"Bearer {hs256({'sub': 'alice', 'exp': NOW})}"}
    async with serving(security_of(tmp_path)) as client:
        statuses = [(await client.post(SPLIT, headers=headers)).status for headers in ({}, bad, old, EVE, ALICE)]

    assert statuses == [401, 401, 401, 403, 200]


async def test_a_token_in_the_query_is_not_looked_at(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path)) as client:
        assert (await client.post(f"{SPLIT}?token={hs256({'sub': 'alice'})}")).status == 401


async def test_two_authorization_headers_are_refused(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path)) as client:
        headers = [*ALICE.items(), *EVE.items()]
        assert (await client.post(SPLIT, headers=headers)).status in {400, 401}


async def test_what_is_open_to_anyone_needs_no_token_and_looks_at_none(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path)) as client:
        for headers in ({}, {"Authorization": "Bearer bad"}):
            answer = await client.get("/health", headers=headers)
            assert (answer.status, await answer.text()) == (200, "anonymous")


async def test_a_name_that_cannot_be_is_refused_after_the_token(tmp_path: Path) -> None:
    path = "/admin/v2/scalable/t/n/%20"
    async with serving(security_of(tmp_path)) as client:
        assert (await client.get(path)).status == 401
        assert (await client.get(path, headers=ALICE)).status == 412


async def test_a_topic_that_is_not_there_is_no_other_refusal(tmp_path: Path) -> None:
    """Who has no right does not learn which topics there are."""
    async with serving(security_of(tmp_path)) as client:
        texts = [
            await (await client.get(f"/admin/v2/scalable/t/n/{name}", headers=EVE)).text() for name in ("here", "gone")
        ]

    assert texts[0].replace("here", "x") == texts[1].replace("gone", "x")


async def test_unknown_paths_are_404_and_methods_405(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path)) as client:
        assert (await client.get("/nowhere")).status == 404
        assert (await client.put("/health")).status == 405


async def test_a_route_without_an_action_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/more", undeclared, allow_head=False)])
    secure(app, security_of(tmp_path))
    app.freeze()

    with pytest.raises(RuntimeError, match="GET /more declares no action"):
        await app.startup()


async def test_a_route_that_does_not_name_what_it_changes_keeps_the_daemon_from_starting() -> None:
    app = web.Application()
    app.add_routes([web.post("/split/{tenant}/{id}", split)])

    assert undeclared_routes(app) == ["POST /split/{tenant}/{id} does split and does not name its namespace, topic"]


async def test_a_route_without_an_action_would_be_refused_to_everybody(tmp_path: Path) -> None:
    app = web.Application(middlewares=[plain_errors, security_middleware(security_of(tmp_path))])
    app.add_routes([web.get("/more", undeclared)])
    root = {"Authorization": f"Bearer {hs256({'sub': 'root'})}"}
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/more", headers=root)).status == 403


async def test_every_change_leaves_one_audit_line_and_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(security_of(tmp_path)) as client:
        await client.post(SPLIT, headers={**ALICE, "Idempotency-Key": "k"})
        await client.post(f"{SPLIT}?fail=1", headers=ALICE)
        await client.post(f"{SPLIT}?dryRun=true", headers=ALICE)
        await client.post(SPLIT, headers=EVE)
        await client.post(SPLIT)
        await client.post("/admin/v2/scalable/t/n/%0Aforged%20/split/0", headers=ALICE)
        await client.get("/admin/v2/scalable/t/n/orders", headers=ALICE)

    audits = [record.__dict__["audit"] for record in caplog.records if record.name == LOGGER_NAME]
    assert [(one["who"], one["outcome"]) for one in audits] == [
        ("alice", "done"),
        ("alice", "wrong-state"),
        ("alice", "done"),
        ("eve", "forbidden"),
        ("anonymous", "unauthenticated"),
        ("alice", "invalid-argument"),
    ]
    assert [one["dryRun"] for one in audits] == [False, False, True, False, False, False]
    assert audits[0]["subject"] == "topic://t/n/orders"
    assert audits[0]["because"] == "admin of tenant t"
    assert audits[0]["requestKey"] == "k"
    assert all(one["address"] == "127.0.0.1" for one in audits)
    for headers in (ALICE, EVE):
        assert headers["Authorization"].split()[1] not in caplog.text


async def test_a_header_that_http_itself_refuses_brings_no_token_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = hs256({"sub": "alice"})
    async with serving(security_of(tmp_path)) as client:
        for damage in (b"\x01", b"\0", b"x" * 20_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(
                b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token.encode() + damage + b"\r\n\r\n"
            )
            answer = await reader.read(500)
            writer.close()
            await writer.wait_closed()
            assert b" 400 " in answer.splitlines()[0]

    assert token not in caplog.text


def test_a_request_left_in_the_middle_is_audited_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    written_down: list[str] = []
    attempt = _Attempt.__new__(_Attempt)
    monkeypatch.setattr(attempt, "_write", lambda outcome, _=None: written_down.append(outcome))
    for error in (asyncio.CancelledError(), RuntimeError("x"), web.HTTPNotFound(), web.HTTPNoContent()):
        attempt.ended(error)

    assert written_down == ["unknown", "failed", "refused", "done"]


async def forwarded(sender: Security, to: Client, headers: dict[str, str], *, body: bytes = b"") -> tuple[int, str]:
    """Ask a daemon that does not lead: it sends the request on, as the application is to do it."""

    @acts(Action.SPLIT)
    async def send_on(request: web.Request) -> web.Response:
        onward = await forward_headers(sender, request, receiver=process_identity("b2", "p"))
        url = URL(f"http://127.0.0.1:{to.port}{request.raw_path}", encoded=True)
        async with (
            aiohttp.ClientSession() as http,
            http.request(request.method, url, headers=onward, data=await request.read()) as answer,
        ):
            return web.Response(status=answer.status, text=await answer.text())

    app = web.Application(middlewares=[plain_errors], client_max_size=1_000)
    app.add_routes([web.post(f"{TOPIC}/split/{{id}}", send_on)])
    secure(app, sender)
    async with TestClient(TestServer(app)) as client:
        url = client.make_url("/").join(URL("/admin/v2/scalable/t/n/a%2Fb%20c/split/0?reason=%2B+x", encoded=True))
        answer = await client.session.post(url, headers=headers, data=body)
        return answer.status, await answer.text()


@pytest.mark.parametrize("secret", [True, False])
async def test_a_forwarded_request_is_the_callers_own(tmp_path: Path, secret: bool) -> None:
    via = "b1" if secret else None
    async with serving(security_of(tmp_path, "b2", secret=secret)) as leader:
        status, text = await forwarded(
            security_of(tmp_path, "b1", secret=secret), leader, {**ALICE, "Idempotency-Key": "k"}, body=b"{}"
        )
        assert (status, text) == (200, f"alice via={via} from=127.0.0.1 hop=True body={{}}")


async def test_daemons_with_and_without_a_cluster_secret_get_along_while_it_is_rolled_out(tmp_path: Path) -> None:
    for sender, receiver in ((True, False), (False, True)):
        async with serving(security_of(tmp_path, "b2", secret=receiver)) as leader:
            status, _ = await forwarded(security_of(tmp_path, "b1", secret=sender), leader, ALICE)
            assert status == 200


async def test_the_leader_decides_again_by_the_callers_rights(tmp_path: Path) -> None:
    sender = security_of(tmp_path, "b1", secret=True)
    assert sender.signer is not None
    call = Call(method="POST", target=SPLIT, body=b"", headers={})
    async with serving(security_of(tmp_path, "b2", secret=True)) as leader:
        value = sender.signer.sign(role("eve"), call, receiver=process_identity("b2", "p"))
        assert (await leader.post(SPLIT, headers={CALL_HEADER: value})).status == 403
        value = sender.signer.sign(daemon("b1"), call, receiver=process_identity("b2", "p"))
        assert (await leader.post(SPLIT, headers={CALL_HEADER: value})).status == 200


async def test_a_client_that_sends_the_forwarding_header_itself_is_refused(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path, "b2", secret=True)) as leader:
        for value in ("", "x", "root", "eyJuYW1lIjoicm9vdCJ9.AAAA", hs256({"sub": "root"})):
            assert (await leader.post(SPLIT, headers={**ALICE, CALL_HEADER: value})).status == 401


async def test_without_a_cluster_secret_the_forwarding_header_says_nothing(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path, "b2")) as leader:
        for headers, status in (({}, 401), (EVE, 403), (ALICE, 200)):
            assert (await leader.post(SPLIT, headers={**headers, CALL_HEADER: "root"})).status == status


async def test_a_request_is_not_forwarded_twice(tmp_path: Path) -> None:
    async with serving(security_of(tmp_path, "b2", secret=True)) as leader:
        status, text = await forwarded(security_of(tmp_path, secret=True), leader, {**ALICE, HOP_HEADER: "1"})
        assert status == 401
        assert "not forwarded again" in text


async def test_a_signed_call_is_good_for_its_own_request_and_once(tmp_path: Path) -> None:
    sender = security_of(tmp_path, "b1", secret=True)
    assert sender.signer is not None
    call = Call(method="POST", target=SPLIT, body=b"{}", headers={})
    async with serving(security_of(tmp_path, "b2", secret=True)) as leader:
        value = sender.signer.sign(role("alice"), call, receiver=process_identity("b2", "p"))
        headers = {CALL_HEADER: value}
        assert (await leader.post(SPLIT, headers=headers, data=b"{...}")).status == 401
        assert (await leader.post(f"{SPLIT}?force=true", headers=headers, data=b"{}")).status == 401
        assert (await leader.post(SPLIT, headers={**headers, "If-Match": "x"}, data=b"{}")).status == 401
        assert (await leader.get("/admin/v2/scalable/t/n/orders", headers=headers)).status == 401
        assert (await leader.post(SPLIT, headers=headers, data=b"{}")).status == 200
        assert (await leader.post(SPLIT, headers=headers, data=b"{}")).status == 401


async def test_with_authentication_off_everything_is_open_and_still_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER_NAME)
    async with serving(security_of(tmp_path, tokens=False)) as client:
        assert (await client.post(SPLIT)).status == 200

    assert [record.__dict__["audit"]["who"] for record in caplog.records] == ["anonymous"]
