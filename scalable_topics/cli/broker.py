"""`scalable-topics broker`: one daemon."""

import argparse
import asyncio
import logging

import msgspec

from scalable_topics.cli.config import add_configuration, configured
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.server.app import run as run_daemon
from scalable_topics.server.auth.audit import LOGGER_NAME as AUDIT
from scalable_topics.server.bodies import ReadyLine
from scalable_topics.server.configuration import advice
from scalable_topics.server.logs import configure_logs

log = logging.getLogger(__name__)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "broker",
        help="run one daemon",
        description="Run a daemon that leads topics and serves their segments, until SIGTERM. Prints one line of JSON"
        " when it is ready. SIGHUP reads the configuration again.",
        allow_abbrev=False,
    )
    add_configuration(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    configuration = configured(options).configuration
    configure_logs(configuration.logging.level, configuration.logging.format)
    logging.getLogger(AUDIT).setLevel(logging.INFO)  # written at every level: it is no matter of taste
    for line in advice(configuration):
        log.warning("%s", line)
    try:
        asyncio.run(run_daemon(configuration, reread=lambda: configured(options).configuration, ready=_print_ready))
    except BaseExceptionGroup as group:
        raise _refusal_in(group) or group from None
    return 0


def _print_ready(line: ReadyLine) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def _refusal_in(group: BaseExceptionGroup[BaseException]) -> ScalableTopicsError | None:
    """The reason for people; what else went wrong is in the log."""
    for error in group.exceptions:
        found = _refusal_in(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, ScalableTopicsError):
            return found
    return None
