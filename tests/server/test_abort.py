"""An operation seen and stopped over REST while it is under way: real processes, one of them held at a failpoint."""

import asyncio

from scalable_topics.control.failpoints import Failpoint
from scalable_topics.model.names import TopicName
from tests.cluster.harness import cluster, trap_of, until
from tests.cluster.traffic import admin_path, make_topic

TOPIC = TopicName.parse("topic://t/n/orders")
PATH = admin_path(TOPIC)


async def test_what_runs_and_what_waits_is_told_and_what_prepares_can_be_aborted() -> None:
    async with cluster(daemons=2, failpoint=Failpoint.ONE_CHILD_MADE) as c:
        await make_topic(c, TOPIC)
        trap = trap_of(c, Failpoint.ONE_CHILD_MADE)
        trap.arm()
        first = asyncio.create_task(
            c.ask("POST", f"{PATH}/split/0?reason=hot", headers={"Idempotency-Key": "a"}, attempt_seconds=30)
        )
        await until(trap.reached, "the split is held in the middle")
        second = asyncio.create_task(
            c.ask("POST", f"{PATH}/rebucket/0?bucketCount=2", headers={"Idempotency-Key": "b"}, attempt_seconds=30)
        )

        async def both_are_told() -> bool:
            told = (await c.ask("GET", f"{PATH}/operations")).json()
            assert isinstance(told, dict)
            return bool(told["running"] and told["queued"])

        await until(both_are_told, "one runs and one waits")
        told = (await c.ask("GET", f"{PATH}/operations")).json()
        assert isinstance(told, dict)
        running, (queued,) = told["running"], told["queued"]
        assert (running["kind"], running["phase"], running["stage"]) == ("SPLIT", "PREPARING", "MAKING")
        assert (running["reason"], running["by"], running["requestKey"]) == ("hot", "anonymous", "a")
        assert running["story"]
        assert [one["parents"] for one in running["replacements"]] == [[0]]
        assert (queued["kind"], queued["requestKey"]) == ("REBUCKET", "b")
        unknown = await c.ask("POST", f"{PATH}/operations/other/abort")
        assert (unknown.status, unknown.reason) == (404, "not-found")

        assert (await c.ask("POST", f"{PATH}/operations/{running['id']}/abort?reason=enough")).status == 204
        trap.release()
        aborted = (await first).json()
        assert isinstance(aborted, dict)
        assert (aborted["outcome"], aborted["reason"]) == ("ABORTED", "enough")
        done = (await second).json()
        assert isinstance(done, dict)
        assert (done["kind"], done["outcome"]) == ("REBUCKET", "DONE")
