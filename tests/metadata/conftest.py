"""Stores to test against: one etcd process for a whole run, and as many prefixes in it as there are tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import pytest_asyncio

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster
from scalable_topics.metadata.memory import MemoryStore
from scalable_topics.metadata.store import MetadataStore

_numbers = count()


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdCluster]:
    """On a loop of its own, because it outlives the loop of any test."""
    with asyncio.Runner() as runner:
        starting = etcd_cluster()
        cluster = runner.run(starting.__aenter__())
        yield cluster
        runner.run(starting.__aexit__(None, None, None))


@pytest.fixture(params=["memory", "etcd"])
def endpoints(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Of a real etcd; none = the memory adapter."""
    if request.param == "memory":
        return ()
    cluster: EtcdCluster = request.getfixturevalue("etcd")
    return cluster.endpoints


@pytest_asyncio.fixture
async def store(endpoints: tuple[str, ...]) -> AsyncIterator[MetadataStore]:
    """Every adapter: what holds of one holds of all."""
    adapter: MetadataStore = EtcdStore(EtcdSettings(endpoints=endpoints)) if endpoints else MemoryStore()
    yield adapter
    await adapter.close()


@pytest.fixture
def root() -> str:
    """A place of its own for each test."""
    return f"/test-{next(_numbers)}/"
