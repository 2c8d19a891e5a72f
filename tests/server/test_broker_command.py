"""`scalable-topics broker` as a command: what it refuses, and SIGHUP to a real process."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from scalable_topics.cli.main import main
from scalable_topics.metadata.local_etcd import EtcdCluster
from tests.server.auth.makers import SECRET, written
from tests.server.daemons import Client, bearer


def test_without_authentication_other_addresses_than_loopback_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--bind", "0.0.0.0"]) == 2  # noqa: S104
    told = capsys.readouterr().err
    assert "bindAddress beyond loopback needs authenticationEnabled, or allowUnauthenticatedAccess" in told


def test_everything_that_is_wrong_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--ttl", "1", "--port", "http", "--etcd", "nowhere"]) == 2
    told = capsys.readouterr().err
    assert all(key in told for key in ("metadataStoreSessionTimeout", "webServicePort", "etcdEndpoints"))


async def test_a_process_takes_a_new_configuration_at_sighup_and_logs_json(
    etcd: EtcdCluster, root: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file, key = tmp_path / "broker.toml", written(tmp_path / "key", SECRET)

    def write(users: str, more: str = "") -> None:
        file.write_text(
            f"""
            authenticationEnabled = true
            authorizationEnabled = true
            tokenSecretKeyFile = "{key}"
            superUserRoles = ["{users}"]
            etcdEndpoints = ["{etcd.endpoints[0]}"]
            metadataStoreRoot = "{root}"
            dataDirectory = "{tmp_path / "data"}"
            logFormat = "json"
            {more}
            """
        )

    write("root")
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scalable_topics", "broker", "--config", str(file), "--broker-id=b1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    try:
        assert process.stdout is not None
        client = Client(http, json.loads(await asyncio.wait_for(process.stdout.readline(), 30))["webUrl"])
        path = "/admin/v2/brokers"
        assert [(await client("GET", path, headers=bearer(one))).status for one in ("root", "boss")] == [200, 403]

        write("boss", "scalableTopicGcInterval = '1m'")
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while (await client("GET", path, headers=bearer("boss"))).status != 200:
                await asyncio.sleep(0.05)
        assert (await client("GET", path, headers=bearer("root"))).status == 403
        assert (await client("PUT", "/admin/v2/scalable/t/n/a", headers=bearer("boss"))).status == 204
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    messages = [line["message"] for line in lines]
    assert 'reloaded superUserRoles: ["root"] -> ["boss"]' in messages
    assert 'needs a restart scalableTopicGcInterval: "5m" -> "60s"' in messages
    (audited,) = [line["audit"] for line in lines if "audit" in line]
    assert (audited["who"], audited["action"], audited["outcome"]) == ("boss", "create-topic", "done")
