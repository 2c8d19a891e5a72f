"""The leader's work of a whole daemon: one controller for each topic it leads, and the way to each of them.

A controller that fails is started again after a growing delay, and `failures` tells why; nothing about a failed start
is remembered beyond that (pitfall 20).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from scalable_topics.control import phases
from scalable_topics.control.controller import Request, TopicController
from scalable_topics.control.led_topic import Gone, LedTopic, Surroundings
from scalable_topics.metadata.elections import Elections
from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.patience import TRANSIENT, Backoff, in_words
from scalable_topics.metadata.repository import Deposed
from scalable_topics.model.autoscale_policy import effective_policy
from scalable_topics.model.errors import Unavailable, WrongState
from scalable_topics.model.layout import initial_layout
from scalable_topics.model.names import TopicName
from scalable_topics.model.operation import FinishedOperation, Operation, OperationKind, Phase
from scalable_topics.model.record import TopicRecord, TopicState

DEFAULT_CREATE_SECONDS: Final = 30.0

FinishedListener = Callable[[TopicName, FinishedOperation], None]

log = logging.getLogger(__name__)


class NotLeading(Unavailable):
    """Another daemon leads this topic, or nobody does yet: ask there, or again."""

    kind = "not-leading"


class ControlService:
    """To be kept `running`, beside running elections."""

    def __init__(self, elections: Elections, around: Surroundings) -> None:
        self._elections = elections
        self._around = around
        self._tasks: asyncio.TaskGroup | None = None
        self._leading: dict[TopicName, tuple[Leadership, asyncio.Task[None]]] = {}
        self._controllers: dict[TopicName, TopicController] = {}
        self._failures: dict[TopicName, str] = {}
        self._finished_listeners: list[FinishedListener] = []

    @property
    def controllers(self) -> Mapping[TopicName, TopicController]:
        """Of the topics that this daemon leads and has looked at."""
        return MappingProxyType(self._controllers)

    @property
    def failures(self) -> Mapping[TopicName, str]:
        """Topics that this daemon leads and whose controller does not start, and why."""
        return MappingProxyType(self._failures)

    def listen(self, listener: FinishedListener) -> Callable[[], None]:
        """Be told every operation that ends under a leadership of this daemon, from now on; answers what ends it. A
        listener must not wait. What it raises is logged, and nobody else notices.
        """
        self._finished_listeners.append(listener)
        return lambda: self._finished_listeners.remove(listener)

    def is_idle(self, topic: TopicName) -> bool:
        """May leadership of it be given away now?"""
        controller = self._controllers.get(topic)
        return controller is not None and controller.ready and controller.record.operation is None

    def controller(self, topic: TopicName) -> TopicController:
        """`NotLeading` if this daemon cannot act for it now."""
        controller = self._controllers.get(topic)
        if controller is None or not controller.ready or topic not in self._elections.led:
            why = self._failures.get(topic)
            raise NotLeading(
                f"its controller does not start: {why}" if why else "this daemon does not lead it",
                subject=str(topic),
                remedy="ask the leader, or try again in a second",
            )
        return controller

    async def create(
        self, topic: TopicName, *, segments: int, request: Request, properties: Mapping[str, str] | None = None
    ) -> TopicRecord:
        """On any daemon: write the record, whose leader then makes the segments. Answers the record as written, in
        state CREATING. `WrongState` if there is one already.
        """
        now_ms = self._around.now_ms()
        operation = Operation(
            id=self._around.new_id(),
            kind=OperationKind.CREATE,
            phase=Phase.PREPARING,
            replacements=(),
            reason=request.reason,
            by=request.by,
            started_at_ms=now_ms,
            request_key=request.key,
        )
        layout = initial_layout(segments, at_ms=now_ms)
        record = phases.initial_record(self._around.new_id(), layout, operation, properties or {})
        try:
            return (await self._around.repository.create_topic(topic, record)).value
        except WrongState:
            known = await self._around.repository.topic(topic)
            if known is not None and request.key is not None and _was_made_by(known.value, request.key):
                return known.value
            raise

    async def wait_active(self, topic: TopicName, *, seconds: float = DEFAULT_CREATE_SECONDS) -> TopicRecord:
        """Until its leader has made its segments. `Unavailable` if that takes longer; it goes on all the same."""
        backoff = Backoff(first_seconds=0.02, max_seconds=0.5)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    known = await self._around.repository.topic(topic)
                    if known is not None and known.value.state is not TopicState.CREATING:
                        return known.value
                    await backoff.wait()
        except TimeoutError:
            raise Unavailable(
                f"it is not ACTIVE after {seconds:.0f} s", subject=str(topic), remedy="it goes on; read it again later"
            ) from None

    def gained(self, leadership: Leadership) -> None:
        if self._tasks is None:
            return
        name = f"controller of {leadership.topic}"
        task = self._tasks.create_task(self._control(leadership), name=name)
        self._leading[leadership.topic] = leadership, task

    def lost(self, leadership: Leadership) -> None:
        known = self._leading.get(leadership.topic)
        if known is not None and known[0] == leadership:
            del self._leading[leadership.topic]
            self._controllers.pop(leadership.topic, None)
            self._failures.pop(leadership.topic, None)
            known[1].cancel()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ControlService"]:
        """Its end stops every controller; what is half done is finished by the next leader."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            end = self._elections.listen(self)
            for leadership in self._elections.led.values():
                self.gained(leadership)
            try:
                yield self
            finally:
                end()
                self._tasks = None
                for _, task in self._leading.values():
                    task.cancel()
                self._leading.clear()
                self._controllers.clear()

    async def _control(self, leadership: Leadership) -> None:
        """Until the leadership or the topic ends. Whatever else ends a controller, it is started again."""
        topic, backoff = leadership.topic, Backoff(max_seconds=30.0)
        while self._leads(leadership):
            try:
                await self._control_once(leadership)
            except Deposed as error:
                # As a rule the loop ends here. If this daemon leads after all, it must not stay without a controller.
                log.info("deposed topic=%s term=%d: %s", topic, leadership.term, error)
            except Gone:
                return
            except TRANSIENT as error:
                self._failures[topic] = in_words(error)
                log.warning("controller interrupted, starting again topic=%s: %s", topic, in_words(error))
            except Exception as error:
                self._failures[topic] = in_words(error)
                log.exception("controller failed, starting again topic=%s term=%d", topic, leadership.term)
            else:
                return
            finally:
                self._controllers.pop(topic, None)
            await backoff.wait()

    async def _control_once(self, leadership: Leadership) -> None:
        known = await self._around.repository.topic(leadership.topic)
        if known is None:
            return
        led = LedTopic(
            leadership,
            known,
            self._around,
            leads=lambda: self._leads(leadership),
            on_finished=lambda finished: self._tell_finished(leadership, finished),
        )
        controller = TopicController(
            led, policy=lambda: effective_policy(self._around.autoscale, led.now.auto_scale_policy).policy
        )
        self._controllers[leadership.topic] = controller
        clearing = asyncio.ensure_future(self._clear_failure(controller))
        try:
            await controller.run()
        finally:
            clearing.cancel()

    async def _clear_failure(self, controller: TopicController) -> None:
        await controller.wait_ready()
        self._failures.pop(controller.topic.topic, None)

    def _tell_finished(self, leadership: Leadership, finished: FinishedOperation) -> None:
        for listener in tuple(self._finished_listeners):
            try:
                listener(leadership.topic, finished)
            except Exception:
                log.exception("a listener failed topic=%s operation=%s", leadership.topic, finished.id)

    def _leads(self, leadership: Leadership) -> bool:
        return self._elections.led.get(leadership.topic) == leadership


def _was_made_by(record: TopicRecord, key: str) -> bool:
    made = record.operation.request_key if record.operation is not None else None
    return made == key or any(one.request_key == key for one in record.recent_operations)
