"""Run seeds: `python -m tests.simulation 7`, or `1000:+400` for four hundred from a thousand on."""

import argparse
import logging
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.scenario import Outcome, run_seed


def seeds_of(text: str) -> range:
    first, _, number = text.partition(":")
    return range(int(first), int(first) + int(number.removeprefix("+") or 1) if number else int(first) + 1)


def attempt(seed: int) -> tuple[int, Outcome | None, str]:
    logging.disable(logging.CRITICAL)
    try:
        return seed, run_seed(seed), ""
    except BaseException:
        return seed, None, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", help="one seed, or FROM:+COUNT")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = seeds_of(options.seeds)
    failed: list[int] = []
    seconds: list[float] = []
    steps, simulated, requests = 0, 0.0, Counter[str]()
    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, (seed, outcome, story) in enumerate(pool.map(attempt, seeds, chunksize=4), 1):
            if outcome is None:
                failed.append(seed)
                print(f"seed {seed} FAILED\n{story}", flush=True)
            else:
                seconds.append(outcome.seconds)
                steps += outcome.steps
                simulated += outcome.simulated_seconds
                requests += outcome.requests
                if len(seeds) == 1:
                    print("\n".join(outcome.story))
            if number % 500 == 0:
                print(f"{number} of {len(seeds)} seeds, {len(failed)} failed", flush=True)
    median = statistics.median(seconds) if seconds else 0
    print(
        f"{len(seeds)} seeds from {seeds[0]}, {len(failed)} failed; {steps} steps, {simulated:.0f} simulated seconds,"
        f" {time.perf_counter() - began:.1f} s in all, median {median * 1000:.0f} ms a seed,"
        f" {steps / max(sum(seconds), 1e-9):.0f} steps/s; requests: {dict(requests.most_common())}"
    )
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
