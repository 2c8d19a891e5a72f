"""The registry: a new layer is one module with a `GROUP`, and one more line here."""

from typing import Final

from tests.bench import core, daemons, operations, store, watch
from tests.bench.rows import Group

GROUPS: Final[dict[str, Group]] = {
    group.name: group for group in (core.GROUP, store.GROUP, watch.GROUP, operations.GROUP, daemons.GROUP)
}
