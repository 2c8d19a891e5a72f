"""From file, environment and flags to a configuration, or to everything that is wrong with them at once."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.configuration.contradictions import broken_rules
from scalable_topics.server.configuration.key import PREFIX, flag_of, variable_of
from scalable_topics.server.configuration.registry import DECLARED, SPELLINGS, VARIABLES, Declared, Spelling, build
from scalable_topics.server.configuration.secret import read_secret
from scalable_topics.server.configuration.settings import Configuration
from scalable_topics.server.configuration.written import toml_value

FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
"""Where the file is, for those who are not told by a flag."""
_NOT_KEYS: Final = frozenset(PREFIX + name for name in ("CONFIG", "CONTEXT", "FAILPOINT", "TOKEN", "URL"))
_LINE: Final = re.compile(r"""\s*\[*\s*(?:"([^"\\]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[=.\]]""")
_AT_LINE: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")


class Problem(Struct, frozen=True):
    """One thing to mend: where it stands (file and line, variable or flag), its key, and what would be right."""

    where: str
    key: str
    what: str
    remedy: str | None = None

    def __str__(self) -> str:
        parts = (self.where, self.key, self.what)
        return ": ".join(part for part in parts if part) + (f" ({self.remedy})" if self.remedy else "")


class InvalidConfiguration(InvalidArgument):
    """All problems, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        many = f"{len(problems)} errors" if len(problems) > 1 else "an error"
        super().__init__("\n  ".join((f"the configuration has {many}:", *map(str, problems))))


class Loaded(Struct, frozen=True):
    """A configuration, and where each of its values that is no default came from."""

    configuration: Configuration
    origins: Mapping[str, str]


class _Given(Struct, frozen=True):
    """A value as somebody wrote it."""

    spelling: Spelling
    value: object
    where: str


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Configuration:
    """Flags over environment over file over defaults. Raises `InvalidConfiguration` with all that is wrong, also with
    a value that another one overrides.

    Of `flags` the names are keys; the last of several values counts, those of a list are joined.
    """
    return load_with_origins(file, environment, flags).configuration


def load_with_origins(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Loaded:
    problems: list[Problem] = []
    sources = (
        _from_file(file, problems) if file is not None else [],
        _from_environment(environment or {}, problems),
        _from_flags(flags or {}, problems),
    )
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    suspect: set[str] = set()
    for source in sources:
        _report_doubles(source, problems)
        for given in source:
            name = given.spelling.declared.name
            try:
                values[name] = _value(given)
            except InvalidArgument as error:
                problems.append(Problem(given.where, given.spelling.name, error.what, error.remedy))
                suspect.add(name)
            else:
                spelled = given.spelling.name
                origins[name] = given.where if spelled == name else f"{given.where} as {spelled}"
    configuration = build({(DECLARED[name].section, DECLARED[name].field): value for name, value in values.items()})
    problems.extend(_contradictions(configuration, origins, suspect))
    if problems:
        raise InvalidConfiguration(problems)
    return Loaded(configuration, origins)


def _value(given: _Given) -> object:
    key = given.spelling.declared.key
    if not given.spelling.is_file:
        return key.parse(given.value)
    if not isinstance(given.value, str):
        raise InvalidArgument("it is not a path", remedy='write it in quotes: "…"')
    if not given.value:
        return None
    assert key.kind.read is not None, "only secrets have files"  # noqa: S101
    return key.kind.read(read_secret(Path(given.value)))


def _contradictions(configuration: Configuration, origins: Mapping[str, str], suspect: set[str]) -> Iterable[Problem]:
    """Where a key could not be read, nothing is said about what it should fit to."""
    for rule in broken_rules(configuration):
        if suspect.isdisjoint(rule.keys) and (rule.keys or not suspect):
            places = dict.fromkeys(origins[name] for name in rule.keys if name in origins)
            shown = ", ".join(f"{name} = {_shown(DECLARED[name], configuration)}" for name in rule.keys)
            yield Problem(" and ".join(places), "", f"{rule.must}: {shown}" if shown else rule.must, rule.remedy)


def _shown(declared: Declared, configuration: Configuration) -> str:
    return toml_value(declared.shown_in(configuration))


def _report_doubles(source: Sequence[_Given], problems: list[Problem]) -> None:
    """Two spellings of one key in one place: nobody can say which was meant."""
    seen: dict[str, _Given] = {}
    for given in source:
        first = seen.setdefault(given.spelling.declared.name, given)
        if first is not given:
            problems.append(
                Problem(
                    given.where,
                    given.spelling.name,
                    f"the same as {first.spelling.name}, which is given too",
                    "remove one of them",
                )
            )


def _from_file(file: Path, problems: list[Problem]) -> list[_Given]:
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        problems.append(Problem(str(file), "", f"cannot be read: {error.strerror}", "give the path of a TOML file"))
        return []
    except UnicodeDecodeError:
        problems.append(Problem(str(file), "", "is not text", "save it as UTF-8"))
        return []
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(_not_toml(file, error))
        return []
    lines = _lines(text)
    found = []
    for name, value in table.items():
        where = f"{file}:{lines[name]}" if name in lines else str(file)
        if (spelling := SPELLINGS.get(name)) is not None and not isinstance(value, dict):
            found.append(_Given(spelling, value, where))
        elif isinstance(value, dict):
            problems.append(Problem(where, name, "there are no tables", "write all keys at the top of the file"))
        else:
            problems.append(_unknown(where, name, name, SPELLINGS))
    return found


def _not_toml(file: Path, error: Exception) -> Problem:
    text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    place = _AT_LINE.search(text)
    where = f"{file}:{place[1]}" if place else str(file)
    return Problem(where, "", f"is not TOML: {_AT_LINE.sub('', text)}", "texts need quotes; see docs/configuration.md")


def _lines(text: str) -> dict[str, int]:
    """Where each name stands first. Good for all that people write; a text of several lines may mislead it."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if match := _LINE.match(line):
            lines.setdefault(match[1] or match[2] or match[3] or "", number)
    return lines


def _from_environment(environment: Mapping[str, str], problems: list[Problem]) -> list[_Given]:
    """An empty variable says nothing: that is how compose files pass on what nobody has set."""
    found = []
    services = [name.removesuffix("_SERVICE_HOST") for name in environment if name.endswith("_SERVICE_HOST")]
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or not environment[variable]:
            continue
        if variable in VARIABLES:
            found.append(_Given(VARIABLES[variable], environment[variable], variable))
        elif variable not in _NOT_KEYS and not any(_is_link(variable, service) for service in services):
            problems.append(_unknown("environment", variable, variable, VARIABLES))
    return found


def _is_link(variable: str, service: str) -> bool:
    """Kubernetes gives these to every pod beside a service, which may well be called scalable-topics."""
    rest = variable.removeprefix(f"{service}_")
    return rest != variable and (rest == "PORT" or rest.startswith(("PORT_", "SERVICE_PORT", "SERVICE_HOST")))


def _from_flags(flags: Mapping[str, Sequence[str]], problems: list[Problem]) -> list[_Given]:
    found = []
    for name, texts in flags.items():
        spelling = SPELLINGS.get(name)
        if spelling is None:
            problems.append(_unknown(flag_of(name), name, name, SPELLINGS))
        elif spelling.declared.key.kind.secret and not spelling.is_file:
            problems.append(
                Problem(
                    flag_of(name),
                    name,
                    "a secret is not given by a flag, which every process of the machine can read",
                    f"use {flag_of(name)}-file, or {variable_of(name)}",
                )
            )
        elif texts:
            several = isinstance(spelling.declared.default, tuple)
            found.append(_Given(spelling, ",".join(texts) if several else texts[-1], flag_of(name)))
    return found


def _unknown(where: str, key: str, name: str, known: Iterable[str]) -> Problem:
    spelled = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.7)
    remedy = f"did you mean {spelled[near[0]]}?" if near else "`scalable-topics config reference` lists all there are"
    return Problem(where, key, "there is no such key", remedy)
