"""`scalable-topics broker`: one daemon."""

import argparse
import asyncio
import json
import logging
import sys
from typing import Final

import msgspec

from scalable_topics.cli.config import add_configuration, configured
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.server.app import run as run_daemon
from scalable_topics.server.bodies import ReadyLine
from scalable_topics.server.configuration import Configuration, LogFormat, advice
from scalable_topics.server.reloading import LOGGER

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

log = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """One object per line; an audit line has its fields beside its text."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        audit = getattr(record, "audit", None)
        if audit is not None:
            fields["audit"] = audit
        if record.exc_info or record.exc_text:
            fields["trace"] = record.exc_text or self.formatException(record.exc_info or (None, None, None))
        return json.dumps(fields)


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
    _log_to_standard_error(configuration)
    for line in advice(configuration):
        log.warning("%s", line)
    try:
        asyncio.run(run_daemon(configuration, reread=lambda: configured(options).configuration, ready=_print_ready))
    except BaseExceptionGroup as group:
        raise _refusal_in(group) or group from None
    return 0


def _log_to_standard_error(configuration: Configuration) -> None:
    handler = logging.StreamHandler(sys.stderr)
    as_json = configuration.logging.format is LogFormat.JSON
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger(LOGGER).setLevel(configuration.logging.level)


def _print_ready(line: ReadyLine) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def _refusal_in(group: BaseExceptionGroup[BaseException]) -> ScalableTopicsError | None:
    """The reason for people; what else went wrong is in the log."""
    for error in group.exceptions:
        found = _refusal_in(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, ScalableTopicsError):
            return found
    return None
