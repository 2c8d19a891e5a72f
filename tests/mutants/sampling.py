"""The order in which mutants are tried. Whatever prefix of it there is time for is a fair sample."""

import random
from collections import defaultdict
from collections.abc import Iterable

from tests.mutants.workspace import Mutant


def in_order(mutants: Iterable[Mutant], *, seed: int) -> list[Mutant]:
    """Shuffled within each module, and the modules interleaved: one of each, then each at the same share."""
    by_module: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_module[mutant.module].append(mutant)
    places = []
    for module, members in sorted(by_module.items()):
        random.Random(f"{seed} {module}").shuffle(members)
        places += [(index / len(members), module, mutant) for index, mutant in enumerate(members)]
    places.sort(key=lambda place: place[:2])
    return [mutant for *_, mutant in places]
