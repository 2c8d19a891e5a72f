"""A daemon as a process: what it answers, and how it ends."""

import asyncio
from pathlib import Path

from scalable_topics.model.names import TopicName
from tests.chaos.network import Weather
from tests.cluster.harness import Answer, cluster, until
from tests.cluster.traffic import History, Writer, admin_path, make_topic, segment_path

TOPIC = TopicName.parse("topic://t/n/orders")
PATH = admin_path(TOPIC)


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.reason


async def test_statuses_and_bodies() -> None:
    async with cluster(daemons=1) as c:
        incarnation = await make_topic(c, TOPIC, segments=2)
        message = {"payload": "", "key": "a"}

        async def ask(method: str, path: str, body: object = None) -> tuple[int, str]:
            return refusal(await c.ask(method, path, body=body))

        assert await ask("PUT", PATH) == (409, "wrong-state")
        assert await ask("GET", f"{PATH}2") == (404, "not-found")
        assert await ask("POST", f"{PATH}2/split/0") == (404, "not-found")
        assert await ask("POST", f"{PATH}/split/9") == (404, "not-found")
        assert await ask("POST", f"{PATH}/split/0?ways=65") == (412, "cap-reached")
        assert await ask("POST", f"{PATH}/split/x") == (412, "invalid-argument")
        assert await ask("POST", f"{PATH}/merge/0/0") == (412, "invalid-argument")
        assert await ask("POST", f"{PATH}/rebucket/0") == (412, "invalid-argument")
        assert await ask("DELETE", f"{PATH}/subscriptions/none") == (404, "not-found")
        assert await ask("PUT", f"{PATH}/subscriptions/s?position=middle") == (412, "invalid-argument")
        assert await ask("POST", f"{PATH}/subscriptions/s/seek") == (412, "invalid-argument")
        assert await ask("GET", "/nowhere") == (404, "http")
        assert await ask("PUT", f"{PATH[:-6]}%00") == (412, "invalid-argument")
        append = segment_path(TOPIC, 0, "append", incarnation)
        assert await ask("POST", append, {"messages": "none"}) == (412, "invalid-argument")
        assert await ask("POST", append.partition("?")[0], {"messages": []}) == (412, "invalid-argument")
        assert await ask("POST", segment_path(TOPIC, 0, "append", "0" * 16), {"messages": []}) == (404, "not-found")
        assert await ask("POST", segment_path(TOPIC, 9, "append", incarnation), {"messages": []}) == (404, "not-found")
        ranged = [
            await ask("POST", segment_path(TOPIC, n, "append", incarnation), {"messages": [message]}) for n in (0, 1)
        ]
        assert sorted(ranged) == [(200, ""), (412, "invalid-argument")], "a key belongs to one of two segments"
        whole = (await c.ask("GET", f"{PATH}2")).json()
        assert isinstance(whole, dict)
        assert whole["what"] == "there is no such topic"
        assert whole["subject"] == "topic://t/n/orders2"


async def test_leader_and_owner_are_pointed_at() -> None:
    async with cluster(daemons=2) as c:
        incarnation = await make_topic(c, TOPIC)
        leader = await c.leader(TOPIC)
        assert leader is not None
        other = c.other(leader)
        answer = await c.once("POST", other.url, f"{PATH}/split/0?ways=3", headers={"X-No-Forward": "1"})
        assert (answer.status, answer.reason, answer.url) == (307, "not-leading", leader.url)
        path = segment_path(TOPIC, 0, "append", incarnation)
        answers = [await c.once("POST", one.url, path, body={"messages": []}) for one in c.daemons]
        answers += [await c.once("POST", one.url, path, body={"messages": []}) for one in c.daemons]
        owner = await c.owner(TOPIC, 0)
        assert owner is not None
        assert sorted(one.status for one in answers) == [200, 200, 307, 307]
        assert {one.url for one in answers} == {owner.url}


async def test_sigterm_gives_everything_back_at_once() -> None:
    async with cluster(daemons=2, ttl=30) as c:
        await make_topic(c, TOPIC)
        await Writer(c, TOPIC, "w", History()).send()
        leader = await c.leader(TOPIC)
        assert leader is not None
        assert await leader.stop() == 0
        successor = c.other(leader)

        async def taken_over() -> bool:
            return await c.leader(TOPIC) is successor

        assert (await c.store.get(c.paths.broker(leader.name))).items == ()
        await until(taken_over, "somebody else leads, long before the lease of 30 s would have ended")
        await Writer(c, TOPIC, "v", History()).send()
        assert await successor.stop() == 0
        for one in c.daemons:
            log = one.log.read_text()
            assert "ERROR" not in log, log
            assert "never retrieved" not in log, log
            assert "was destroyed" not in log, log


async def test_a_second_daemon_of_the_same_name_ends_the_first() -> None:
    async with cluster(daemons=1, ttl=2) as c:
        first = c.daemons[0]
        usurper = type(first)(first.name, first._command, first.link, Path(c.directory), "")
        usurper.log = c.directory / "usurper.log"
        try:
            await usurper.start()
            assert first._process is not None
            assert await asyncio.wait_for(first._process.wait(), 30) == 2
            assert "another process runs as 'd0'" in first.log.read_text()
        finally:
            await usurper.kill()


async def test_while_the_store_is_away_what_is_served_goes_on() -> None:
    async with cluster(daemons=1, ttl=2) as c:
        await make_topic(c, TOPIC)
        only, history = c.daemons[0], History()
        writer = Writer(c, TOPIC, "w", history)
        await writer.send()
        only.link.change(Weather.REFUSED)

        async def without_session() -> bool:
            told = (await c.once("GET", only.url, "/health")).json()
            return isinstance(told, dict) and not told["session"]

        await until(without_session, "the daemon knows that its session is over")
        before = writer.sent
        for _ in range(5):
            await writer.send()
        assert writer.sent == before + 5
        assert refusal(await c.once("GET", only.url, PATH, seconds=20)) == (200, "")
        only.link.change(Weather.FAIR)
        await until(lambda: c.has_session(only), "it has a session again")
        await writer.send()
