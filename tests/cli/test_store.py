"""`scalable-topics store` as an operator types it, against a real etcd."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalable_topics.cli.main import main
from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster, find_etcd, free_ports
from scalable_topics.metadata.marker import ensure_marker
from scalable_topics.metadata.store import Delete, Put
from scalable_topics.metadata.view import StoreView
from scalable_topics.model.paths import StorePaths


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with asyncio.Runner() as runner:
        starting = etcd_cluster(directory=tmp_path)
        cluster = runner.run(starting.__aenter__())
        yield cluster
        runner.run(starting.__aexit__(None, None, None))


async def mark(endpoints: tuple[str, ...], root: str) -> None:
    store = EtcdStore(EtcdSettings(endpoints=endpoints))
    await ensure_marker(store, StorePaths(root), cluster_name="prod")
    await store.close()


def test_the_generation_is_raised_and_told(etcd: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["store", "bump-generation", "--endpoint", etcd.endpoints[0], "--root", "/mine"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "/mine/marker: there is no marker (is --root right? see docs/metadata-store.md" in told

    asyncio.run(mark(etcd.endpoints, "/mine"))

    for generation in (2, 3):
        assert main(command) == 0
        assert capsys.readouterr().out == f"prod: this is generation {generation} of the store now\n"


def test_an_etcd_that_is_away_is_told_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert main(["store", "bump-generation", "--endpoint", f"http://127.0.0.1:{port}"]) == 2
    assert "is this etcd up, and --endpoint right?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--endpoint", "localhost:2379"], "'localhost:2379' is not an endpoint (write http://host:2379"),
        (["--username", "root"], "--username needs a password (set the variable ETCD_PASSWORD)"),
        (["--ca-file", "/no/such/file"], "/no/such/file is not a file (give the path of a PEM file)"),
    ],
)
def test_what_cannot_work_is_told_with_a_way_out(
    arguments: list[str], story: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ETCD_PASSWORD", raising=False)
    assert main(["store", "bump-generation", *arguments]) == 2
    assert story in capsys.readouterr().err


async def test_a_backup_is_restored_as_the_documentation_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/metadata-store.md, step by step, under a view that nobody restarts: it ends with what is in the store."""
    tools = Path(find_etcd()).parent
    etcdctl, etcdutl = (shutil.which(name, path=tools) or shutil.which(name) for name in ("etcdctl", "etcdutl"))
    if etcdctl is None or etcdutl is None:
        pytest.skip("etcdctl and etcdutl are not beside this etcd")
    paths, backup = StorePaths("/r"), tmp_path / "backup.db"

    async def run(*command: str) -> None:
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)

    async with etcd_cluster(directory=tmp_path) as cluster:
        (member,) = cluster.members
        store = EtcdStore(EtcdSettings(endpoints=cluster.endpoints))
        await ensure_marker(store, paths, cluster_name="prod")
        for number in range(5):
            await store.commit([Put(f"/r/{number}", b"before")])
        async with StoreView(store, paths, silence_seconds=5).running() as view:
            await run(etcdctl, f"--endpoints={member.client_url}", "snapshot", "save", str(backup))
            await store.commit([Put("/r/lost", b"after the backup"), Delete("/r/0")])
            last = await store.commit([Put("/r/1", b"after the backup")])
            await view.wait_for_revision(last.revision)

            await member.kill()
            shutil.rmtree(tmp_path / member.name)
            await run(
                etcdutl,
                "snapshot",
                "restore",
                str(backup),
                f"--name={member.name}",
                f"--initial-cluster={member.cluster}",
                f"--initial-advertise-peer-urls={member.peer_url}",
                f"--data-dir={tmp_path / member.name}",
            )
            await member.start()
            await cluster.ready()
            assert await asyncio.to_thread(main, ["store", "bump-generation", "--root", "/r", *endpoint(cluster)]) == 0
            assert "prod: this is generation" in capsys.readouterr().out

            async with asyncio.timeout(20):
                while True:
                    now = await store.scan("/r/")
                    if dict(view.state.items) == {item.key: item for item in now.items}:
                        break
                    await asyncio.sleep(0.1)
            assert view.state.items["/r/1"].value == b"before"
            assert "/r/lost" not in view.state.items
            assert view.state.generation >= 2
        await store.close()


def endpoint(cluster: EtcdCluster) -> list[str]:
    return [f"--endpoint={url}" for url in cluster.endpoints]
