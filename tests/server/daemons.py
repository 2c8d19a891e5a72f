"""Real daemons in the test's own process, on a real etcd: `async with daemon_at(etcd, root, data, "d1") as url`."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from msgspec import Struct

from scalable_topics.metadata.local_etcd import EtcdCluster
from scalable_topics.server.app import _bound, _serve
from scalable_topics.server.bodies import ReadyLine
from scalable_topics.server.configuration import Configuration, load
from tests.server.auth.makers import hs256

START_SECONDS = 30.0
PATIENCE_SECONDS = 20.0


class Answer(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        told = self.headers.get("Content-Type", "").startswith("application/json")
        found = self.json() if told and self.body else {}
        return str(found.get("reason", "")) if isinstance(found, dict) else ""


@asynccontextmanager
async def daemon_at(
    etcd: EtcdCluster,
    root: str,
    data: Path,
    name: str,
    *,
    flags: Mapping[str, str] | None = None,
    reread: Callable[[], Configuration] | None = None,
) -> AsyncIterator[str]:
    """Answers its URL when it is ready. `flags`: names of keys and their values."""
    told = {"brokerId": name, "dataDirectory": str(data), "metadataStoreRoot": root, **(flags or {})}
    given = {key: [value] for key, value in told.items()} | {"etcdEndpoints": list(etcd.endpoints)}
    configuration = load(flags=given)
    ready: asyncio.Future[ReadyLine] = asyncio.get_running_loop().create_future()
    with ExitStack() as sockets:
        listening = _bound(configuration, sockets)
        serving = asyncio.create_task(
            _serve(configuration, reread or (lambda: configuration), listening, ready.set_result)
        )
        try:
            serving.add_done_callback(lambda _: ready.done() or ready.cancel())
            try:
                line = await asyncio.wait_for(ready, START_SECONDS)
            except asyncio.CancelledError:
                await serving  # it tells why it ended
                raise
            yield line.web_url
        finally:
            serving.cancel()
            await asyncio.wait([serving])


class Client:
    """Asks one daemon, in somebody's name."""

    def __init__(self, http: aiohttp.ClientSession, url: str, role: str = "") -> None:
        self.url = url
        self._http = http
        self._headers = bearer(role) if role else {}

    def named(self, role: str) -> "Client":
        return Client(self._http, self.url, role)

    async def __call__(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Once more while the leader is not known yet."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                async with self._http.request(
                    method,
                    f"{self.url}{path}",
                    json=body,
                    headers={**self._headers, **(headers or {})},
                    allow_redirects=False,
                ) as response:
                    answer = Answer(response.status, response.headers, await response.read())
                if answer.reason != "not-leading" or answer.status != 503 or "X-Once" in (headers or {}):
                    return answer
                await asyncio.sleep(0.05)


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {hs256({'sub': role})}"}
