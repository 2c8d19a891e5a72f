"""`scalable-topics store`: what an operator does to the metadata store itself."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any, Final

from scalable_topics.metadata.etcd import EtcdSettings, EtcdStore
from scalable_topics.metadata.marker import StoreMarker, bump_generation
from scalable_topics.model.errors import InvalidArgument, NotFound, Unavailable
from scalable_topics.model.paths import DEFAULT_ROOT, StorePaths

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:2379"
PASSWORD_VARIABLE: Final = "ETCD_PASSWORD"  # noqa: S105 - where it is, not what it is
RESTORING: Final = "see docs/metadata-store.md, Restored from a backup"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("store", help="look after the metadata store")
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    bump = tasks.add_parser(
        "bump-generation",
        help="say that the store was restored from a backup",
        description=(
            "Raise the store's generation, so that every daemon reads everything again and clients accept what comes"
            " after a restore although its revisions are lower. To be run once after a restore, when etcd is up again."
        ),
    )

    def option(name: str, **details: Any) -> None:
        bump.add_argument(name, **details)

    option("--endpoint", action="append", metavar="URL", help=f"a member; repeatable (default: {DEFAULT_ENDPOINT})")
    option("--root", default=DEFAULT_ROOT, metavar="KEY", help="prefix of our keys (default: %(default)s)")
    option("--username", metavar="NAME", help=f"its password is read from the variable {PASSWORD_VARIABLE}")
    option("--ca-file", type=Path, metavar="FILE", help="trust this authority instead of the system's")
    option("--certificate-file", type=Path, metavar="FILE", help="our certificate, if etcd wants one")
    option("--key-file", type=Path, metavar="FILE", help="the key of our certificate")
    bump.set_defaults(run=run_bump_generation)


def run_bump_generation(options: argparse.Namespace) -> int:
    marker = asyncio.run(_bump(_settings(options), StorePaths(options.root)))
    print(f"{marker.cluster_name}: this is generation {marker.generation} of the store now")
    return 0


async def _bump(settings: EtcdSettings, paths: StorePaths) -> StoreMarker:
    store = EtcdStore(settings)
    try:
        return await bump_generation(store, paths)
    except Unavailable as error:
        raise Unavailable(
            error.what, subject=error.subject, remedy=f"is this etcd up, and --endpoint right? {RESTORING}"
        ) from error
    except NotFound as error:
        raise NotFound(error.what, subject=error.subject, remedy=f"is --root right? {RESTORING}") from error
    finally:
        await store.close()


def _settings(options: argparse.Namespace) -> EtcdSettings:
    if options.username is not None and PASSWORD_VARIABLE not in os.environ:
        raise InvalidArgument("--username needs a password", remedy=f"set the variable {PASSWORD_VARIABLE}")
    for file in (options.ca_file, options.certificate_file, options.key_file):
        if file is not None and not file.is_file():
            raise InvalidArgument(f"{file} is not a file", remedy="give the path of a PEM file")
    return EtcdSettings(
        endpoints=tuple(options.endpoint or (DEFAULT_ENDPOINT,)),
        username=options.username,
        password=os.environ[PASSWORD_VARIABLE] if options.username is not None else None,
        ca_file=_text(options.ca_file),
        certificate_file=_text(options.certificate_file),
        key_file=_text(options.key_file),
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
