"""The local cluster as a newcomer meets it: one command, real processes, everything gone afterwards."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scalable_topics.cli.main import main


@asynccontextmanager
async def dev(data: Path) -> AsyncIterator[dict[str, Any]]:
    """`scalable-topics dev` until the block ends; answers what its file tells."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scalable_topics", "dev", f"--data={data}", "--brokers=2", stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            while not (data / "cluster.json").exists():
                assert process.returncode is None
                await asyncio.sleep(0.1)
        yield json.loads((data / "cluster.json").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert b"A local cluster runs" in output
    assert not (data / "cluster.json").exists()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_cluster_that_is_there_again_after_a_restart(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http:
        async with dev(tmp_path / "run") as cluster:
            pids = [one["pid"] for one in (*cluster["brokers"], *cluster["etcd"])]
            assert all(map(runs, pids))
            url = f"{cluster['brokers'][0]['webUrl']}/admin/v2/scalable/public/default/demo"
            async with http.post(f"{url}/split/0") as response:
                assert response.status == 204, await response.text()
        assert not any(map(runs, pids)), "everything it started has ended"
        async with dev(tmp_path / "run") as cluster:
            url = f"{cluster['brokers'][1]['webUrl']}/admin/v2/scalable/public/default/demo"
            async with http.get(url) as response:
                record = await response.json()
        active = [one for one in record["segments"].values() if one["state"] == "ACTIVE"]
        assert (record["epoch"], len(active)) == (1, 2)


@pytest.mark.parametrize("number", ["0", "21", "many"])
def test_an_impossible_number_of_brokers(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["dev", "--brokers", number])
    assert "--brokers" in capsys.readouterr().err
