"""`scalable-topics config`: is the configuration right, what is it, and what could it be?"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from scalable_topics.server.configuration import (
    FILE_VARIABLE,
    KEYS,
    SPELLINGS,
    Loaded,
    advice,
    as_markdown,
    as_toml,
    changed,
    load,
    load_with_origins,
    reloaded,
    shown,
)
from scalable_topics.server.configuration.key import flag_of

_DEST: Final = "key:"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("config", help="check, show and explain the configuration")
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")

    def task(name: str, **details: Any) -> argparse.ArgumentParser:
        return tasks.add_parser(name, allow_abbrev=False, **details)

    check = task(
        "check",
        help="tell everything that is wrong",
        description="Read the configuration as the daemon would, and tell everything that is wrong with it at once.",
    )
    check.add_argument(
        "--since", type=Path, metavar="FILE", help="tell what a reload would change, had the file been this one"
    )
    add_configuration(check)
    check.set_defaults(run=run_check)
    show = task(
        "show",
        help="print every value, and where it came from",
        description="Print the configuration as the daemon would have it. Secrets are ***.",
    )
    show.add_argument("-o", "--output", choices=("toml", "json"), default="toml", help="(default: %(default)s)")
    add_configuration(show)
    show.set_defaults(run=run_show)
    reference = task("reference", help="print every key there is, with its default and reason")
    reference.add_argument(
        "-o",
        "--output",
        choices=("markdown", "toml"),
        default="markdown",
        help="toml is a file to begin with (default: %(default)s)",
    )
    reference.set_defaults(run=run_reference)


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """`--config` and a flag for every key. `parser` should not allow abbreviations: there are too many flags."""
    group = parser.add_argument_group(
        "configuration", "Every key of docs/configuration.md is a flag: --scalable-topic-max-segments 32"
    )
    group.add_argument(
        "--config", type=Path, metavar="FILE", help=f"a TOML file (default: the variable {FILE_VARIABLE}, or none)"
    )
    for one in KEYS:
        group.add_argument(
            *one.key.flags,
            dest=f"{_DEST}{one.name}",
            action="append",
            metavar=_metavar(one.key.kind.name),
            # The reference tells of all of them; --help of those that one types.
            help=one.doc.replace("%", "%%") if one.key.flag else argparse.SUPPRESS,
        )
    for spelling in SPELLINGS.values():
        if spelling.name != spelling.declared.name:
            group.add_argument(
                flag_of(spelling.name), dest=f"{_DEST}{spelling.name}", action="append", help=argparse.SUPPRESS
            )


def _metavar(kind: str) -> str:
    return kind.replace(" or ", "|") if " or " in kind else kind.upper().replace(" ", "-")


def configured(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Loaded:
    """What was told to a parser with `add_configuration`. Also for reading it again, on SIGHUP."""
    return load_with_origins(file_of(options, environment), environment, flags_of(options))


def file_of(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Path | None:
    told: Path | None = options.config
    return told if told is not None or not environment.get(FILE_VARIABLE) else Path(environment[FILE_VARIABLE])


def flags_of(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    return {
        name.removeprefix(_DEST): texts
        for name, texts in vars(options).items()
        if name.startswith(_DEST) and texts is not None
    }


def run_check(options: argparse.Namespace) -> int:
    configuration = configured(options).configuration
    for line in advice(configuration):
        print(f"note: {line}")
    if options.since is not None:
        running = load(options.since, os.environ, flags_of(options))
        changes = changed(running, configuration)
        reloaded(running, configuration)
        for change in changes.applied:
            print(f"at run time: {change}")
        for change in changes.needs_restart:
            print(f"needs a restart: {change}")
    print("the configuration is right")
    return 0


def run_show(options: argparse.Namespace) -> int:
    loaded = configured(options)
    if options.output == "json":
        print(msgspec.json.format(msgspec.json.encode(shown(loaded.configuration))).decode())
    else:
        print(as_toml(loaded.configuration, loaded.origins), end="")
    return 0


def run_reference(options: argparse.Namespace) -> int:
    print(as_toml() if options.output == "toml" else as_markdown(), end="")
    return 0
