"""Deliberate mistakes of the protocol, one at a time: the simulation or the matrix must find each of them.

This tests the checkers. `python -m tests.simulation.planted` (`make planted`) switches each mistake on and runs seeds
and cells until one of them is convicted; a mistake that nobody finds is a failure.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from scalable_topics.control import collector, executor, phases, steps, subscriptions
from scalable_topics.control.failpoints import Failpoint
from scalable_topics.control.steps import CommitAbort, CommitDone, CommitSealing, Run, Stage, Terminate
from scalable_topics.metadata.leadership import Leadership
from scalable_topics.metadata.store import CreateRevisionIs
from scalable_topics.model.operation import Operation, Phase
from scalable_topics.model.record import TopicRecord
from scalable_topics.model.subscription import SubscriptionState
from scalable_topics.policy.retention import sweep
from scalable_topics.segments import lifecycle
from tests.simulation.matrix import CELLS, run_cell
from tests.simulation.scenario import run_seed

MOST_SEEDS = 150
SEEDS_THAT_FOUND = (32105,)
"""Tried first: each has convicted a mistake that few seeds find."""

Plant = Callable[[], Any]


def _no_fence() -> Any:
    """A leader compares the term 0: a key that is absent."""
    return patch.object(Leadership, "fence", lambda self: (CreateRevisionIs(f"{self.key}/none", 0),))


def _seal_without_listing() -> Any:
    """Commit 2 does not compare the record that the subscriptions were listed from."""

    async def commit(self: executor.Executor) -> None:
        await self._topic.update(lambda r: r if phases.running(r).phase is Phase.SEALING else phases.seal(r))
        self._say(steps.SealingCommitted())

    return patch.object(executor.Executor, "_commit_sealing", commit)


def _terminate_before_commit_2() -> Any:
    """Parents are terminated as soon as the children are made; the announcement follows."""

    original = executor.Executor._commit_sealing

    async def commit(self: executor.Executor) -> None:
        for parent in phases.parents(self._run.operation.replacements):
            address = self._topic.address(self._topic.now.layout.segment(parent))
            await self._topic.insist(
                self.operation_id,
                lambda call, at=address: self._topic.around.segments.terminate(at, call),  # type: ignore[misc]
            )
        await original(self)

    return patch.object(executor.Executor, "_commit_sealing", commit)


def _recompute_children() -> Any:
    """Commit 3 makes the children anew, from whatever ids are next."""

    def finish(record: TopicRecord, ends: Any, *, at_ms: int) -> TopicRecord:
        operation = phases.running(record)
        if operation.replacements and operation.phase is Phase.SEALING:
            shift = record.layout.next_segment_id - min(c.segment_id for c in phases.children(operation.replacements))
            moved = tuple(
                replace(r, children=tuple(replace(c, segment_id=c.segment_id + shift) for c in r.children))
                for r in operation.replacements
            )
            record = replace(record, operation=replace(operation, replacements=moved))
        return original(record, ends, at_ms=at_ms)

    original = phases.finish
    return patch.object(phases, "finish", finish)


def _adopt_foreign_stamps() -> Any:
    """Whatever has the right name is taken for ours."""
    return patch.object(lifecycle, "_accepted", lambda row, stamp, must_be_empty: row)  # noqa: ARG005


def _children_without_cursors() -> Any:
    """Children are made without the subscriptions."""

    async def listed(self: executor.Executor) -> None:
        self._listed = self._topic.record
        self._subscriptions = ()

    return patch.object(executor.Executor, "_list_subscriptions", listed)


def _ready_without_looking_again() -> Any:
    """A subscription is READY whatever happened to the layout while it was made, and operations look at READY ones
    only.
    """

    async def write_once(self: subscriptions.Subscriptions, name: str, known: Any, wanted: Any) -> None:
        await self._topic.reload()
        await original(self, name, known, wanted)

    async def go_on(self: subscriptions.Subscriptions, name: str, known: Any) -> Any:
        if known.value.state is SubscriptionState.CREATING:
            await self._give_cursors(name, known)
            ready = replace(known.value, state=SubscriptionState.READY)
            await write_once(self, name, known, ready)
            return ready
        return await original_go_on(self, name, known)

    async def listed(self: executor.Executor) -> None:
        self._listed = self._topic.record
        found = await self._topic.around.repository.subscriptions(self._topic.topic)
        self._subscriptions = tuple(n for n, one in found.items() if one.value.state is SubscriptionState.READY)

    original, original_go_on = subscriptions.Subscriptions._write_once, subscriptions.Subscriptions._go_on
    return _both(
        patch.object(subscriptions.Subscriptions, "_go_on", go_on),
        patch.object(executor.Executor, "_list_subscriptions", listed),
    )


def _prune_undrained() -> Any:
    """Retention alone decides."""
    return patch.object(collector, "sweep", lambda layout, **named: sweep(layout, **{**named, "drained": {}}))


def _abort_forgets_children() -> Any:
    """An abort leaves what it made behind."""
    original = phases.abort

    def abort(*arguments: Any, **named: Any) -> TopicRecord:
        return replace(original(*arguments, **named), garbage=arguments[1].garbage)

    return patch.object(phases, "abort", abort)


def _ids_are_not_burnt() -> Any:
    """An aborted operation gives its ids back."""
    original = phases.abort

    def abort(topic: Any, record: TopicRecord, *arguments: Any, **named: Any) -> TopicRecord:
        first = min(child.segment_id for child in phases.children(phases.running(record).replacements))
        after = original(topic, record, *arguments, **named)
        return replace(after, layout=replace(after.layout, next_segment_id=first))

    return patch.object(phases, "abort", abort)


def _abort_after_the_point_of_no_return() -> Any:
    """A new leader gives up what it finds in SEALING."""
    original = steps._take_up

    def take_up(run: Run) -> Any:
        if run.operation.phase is Phase.SEALING:
            running = replace(run, stage=Stage.ABORTING)
            return running, [CommitAbort("found half done", frozenset())]
        return original(run)

    def unchecked(topic: Any, record: TopicRecord, reason: str, *, foreign: Any, at_ms: int) -> TopicRecord:
        preparing = replace(phases.running(record), phase=Phase.PREPARING)
        return abort(topic, replace(record, operation=preparing), reason, foreign=foreign, at_ms=at_ms)

    abort = phases.abort
    return _both(patch.object(steps, "_take_up", take_up), patch.object(phases, "abort", unchecked))


def _commit_before_all_parents_ended() -> Any:
    """Commit 3 after the first parent of a merge."""
    original = steps._seal

    def seal(run: Run) -> Any:
        after, instructions = original(run)
        first = instructions[0]
        assert isinstance(first, Terminate)
        return replace(after, waiting=frozenset({first.segment_id})), instructions

    return patch.object(steps, "_seal", seal)


def _no_announcement() -> Any:
    """Commit 2 is left out: parents are terminated while the record still says PREPARING."""
    original = steps._all_made

    def all_made(run: Run) -> Any:
        after, instructions = original(run)
        if instructions and isinstance(instructions[0], CommitSealing):
            return steps._seal(run)
        return after, instructions

    return patch.object(steps, "_all_made", all_made)


def _parents_are_never_terminated() -> Any:
    """Commit 3 follows the announcement at once."""

    def seal(run: Run) -> Any:
        return replace(run, stage=Stage.COMMITTING), [CommitDone({})]

    return patch.object(steps, "_seal", seal)


def _stale_terms_are_obeyed() -> Any:
    """Owners do not remember the term of the last leader, and leaders do not look whether they still are."""

    def entered(rows: Any, name: str, call: Any) -> Any:
        return replace(lifecycle.current(rows, name), term=call.term)

    async def blind(self: executor.Executor, segment: Any) -> None:
        await original(self, segment)

    original = executor.Executor._terminate
    return _both(
        patch.object(lifecycle, "entered", entered),
        patch.object(lifecycle, "_fenced", lambda row, call: replace(row, term=call.term)),
        patch.object(executor.Executor, "_terminate", blind),
        patch.object(Leadership, "fence", lambda self: (CreateRevisionIs(f"{self.key}/none", 0),)),
    )


def _unreachable_is_gone() -> Any:
    """Garbage is forgotten without a proof that it is gone."""

    async def gone(self: collector.Collector, physical: str) -> bool:
        await self._topic.reach(Failpoint.CLEAN_UP_HALF_DONE)
        return bool(physical)

    return patch.object(collector.Collector, "_is_gone", gone)


def _seeks_keep_their_markers() -> Any:
    """A seek leaves the drained markers where they are, and pruning believes them."""

    async def keep(self: subscriptions.Subscriptions, name: str) -> None:  # noqa: ARG001
        return

    async def same_generation(self: subscriptions.Subscriptions, name: str, known: Any, wanted: Any) -> None:
        if known is not None and wanted is not None:
            wanted = replace(wanted, seek_generation=0)
        await original(self, name, known, wanted)

    original = subscriptions.Subscriptions._write_once
    return _both(
        patch.object(subscriptions.Subscriptions, "_drop_markers", keep),
        patch.object(subscriptions.Subscriptions, "_write_once", same_generation),
    )


def _go_on_with_what_was_read_before_the_lock() -> Any:
    """House-keeping deletes a subscription that was deleted and made anew while it waited."""

    async def go_on(self: subscriptions.Subscriptions) -> None:
        for name, known in (await self._all()).items():
            async with self._locks[name]:
                if known.value.state is SubscriptionState.DELETING:
                    await self._delete(name)
                else:
                    await self._go_on(name, known)

    return patch.object(subscriptions.Subscriptions, "go_on", go_on)


def _begin_over_a_running_operation() -> Any:
    """Commit 1 does not look whether something is under way."""

    def begin(topic: Any, record: TopicRecord, operation: Operation) -> TopicRecord:  # noqa: ARG001
        return replace(record, layout=record.layout.announce(operation.replacements), operation=operation)

    class NoTurn:
        def __getattr__(self, name: str) -> Any:
            async def nothing() -> bool:
                return True

            return nothing if name == "acquire" else (lambda: None)

        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            pass

    from scalable_topics.control import controller

    original = controller.TopicController.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self._turn = NoTurn()

    return _both(patch.object(phases, "begin", begin), patch.object(controller.TopicController, "__init__", init))


@contextmanager
def _both(*patches: Any) -> Iterator[None]:
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


PLANTED: dict[str, Plant] = {
    name.removeprefix("_"): plant
    for name, plant in list(globals().items())
    if name.startswith("_") and callable(plant) and getattr(plant, "__doc__", None) and plant.__module__ == __name__
}


def find(name: str) -> str | None:
    """Who found it; None = nobody."""
    logging.disable(logging.CRITICAL)
    with PLANTED[name]():
        for cell in CELLS:
            try:
                run_cell(cell)
            except BaseException as error:
                return f"cell {cell}: {_word(error)}"
        for seed in (*SEEDS_THAT_FOUND, *range(MOST_SEEDS)):
            try:
                run_seed(seed)
            except BaseException as error:
                return f"seed {seed}: {_word(error)}"
    return None


def _word(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:100]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="some of them; all by default", choices=[*PLANTED, []])
    options = parser.parse_args()
    names = options.names or list(PLANTED)
    missed = []
    began = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, found in zip(names, pool.map(find, names), strict=True):
            print(f"{'found ' if found else 'MISSED'} {name:40} {found or ''}", flush=True)
            if found is None:
                missed.append(name)
    print(f"{len(names)} planted mistakes, {len(missed)} missed, {time.perf_counter() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
