"""Run the chaos test for as long as you like: `python -m tests.chaos --minutes 30`."""

import argparse
import asyncio
import random
import sys

from tests.chaos.driver import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="repeat the choices of an earlier run")
    parser.add_argument("--daemons", type=int, default=3)
    parser.add_argument("--topics", type=int, default=20)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.minutes} minutes, {options.daemons} daemons, {options.topics} topics", flush=True)
    outcome = asyncio.run(run(options.minutes * 60, seed=seed, daemons=options.daemons, topics=options.topics))
    for fault, count in sorted(outcome.faults.items()):
        print(f"{count:6}  {fault}")
    print(f"{sum(outcome.faults.values())} faults, {outcome.terms} terms, {outcome.writes} writes, ", end="")
    print(f"{outcome.acknowledged} acknowledged, {outcome.unknown} with an unknown outcome")
    print(f"{len(outcome.violations)} violations")
    for violation in outcome.violations[:50]:
        print(f"  {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
