"""`scalable-topics`: the command that people type."""

import argparse
import sys
from collections.abc import Sequence

from scalable_topics.cli import broker, config, dev, rehearse, store
from scalable_topics.model.errors import ScalableTopicsError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scalable-topics", description="Scalable topics for the Pulsar you already run."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    rehearse.add_command(commands)
    dev.add_command(commands)
    broker.add_command(commands)
    store.add_command(commands)
    config.add_command(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except ScalableTopicsError as error:
        print(f"scalable-topics: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has seen enough
        return 0
