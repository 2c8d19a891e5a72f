"""`scalable-topics broker`: one daemon."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from scalable_topics.control.led_topic import ControlSettings
from scalable_topics.metadata.etcd import EtcdSettings
from scalable_topics.metadata.session import DEFAULT_TTL_SECONDS
from scalable_topics.model.errors import ScalableTopicsError
from scalable_topics.model.paths import DEFAULT_ROOT
from scalable_topics.server.app import run as run_daemon
from scalable_topics.server.bodies import ReadyLine
from scalable_topics.server.daemon import DaemonSettings

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "broker",
        help="run one daemon",
        description="Run a daemon that leads topics and serves their segments, until SIGTERM. Prints one line of JSON"
        " when it is ready.",
    )

    def option(name: str, **details: Any) -> None:
        parser.add_argument(name, **details)

    option("--etcd", action="append", required=True, metavar="URL", help="client URL of an etcd member; repeatable")
    option("--data", type=Path, required=True, metavar="DIR", help="segments, shared by this machine's daemons")
    option("--broker-id", required=True, metavar="NAME", help="of this daemon alone")
    option("--port", type=int, default=0, help="on loopback (default: a free one)")
    option("--root", default=DEFAULT_ROOT, help="prefix of all keys in etcd (default: %(default)s)")
    option("--cluster", default="standalone", metavar="NAME", help="name in the marker (default: %(default)s)")
    option("--ttl", type=int, default=DEFAULT_TTL_SECONDS, help="seconds of the lease (default: %(default)s)")
    option("--gc-interval", type=float, default=300, help="seconds between collections (default: %(default)g)")
    option("--log-level", default="INFO", help="to standard error (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(level=options.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    settings = DaemonSettings(
        etcd=EtcdSettings(endpoints=tuple(options.etcd)),
        data=options.data,
        broker_id=options.broker_id,
        root=options.root,
        cluster_name=options.cluster,
        ttl_seconds=options.ttl,
        control=ControlSettings(gc_interval_seconds=options.gc_interval),
    )
    try:
        asyncio.run(run_daemon(settings, port=options.port, ready=_print_ready))
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
