"""One etcd for all daemons of these tests, and a root of its own for each test."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import aiohttp
import pytest
import pytest_asyncio

from scalable_topics.metadata.local_etcd import EtcdCluster, etcd_cluster

_numbers = count()


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdCluster]:
    """On a loop of its own, because it outlives the loop of any test."""
    with asyncio.Runner() as runner:
        starting = etcd_cluster()
        cluster = runner.run(starting.__aenter__())
        yield cluster
        runner.run(starting.__aexit__(None, None, None))


@pytest.fixture
def root() -> str:
    return f"/server-{next(_numbers)}"


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
