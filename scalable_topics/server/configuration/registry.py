"""The declared keys by every name they have."""

import ast
import inspect
from functools import cache
from typing import Final, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from scalable_topics.server.configuration import settings
from scalable_topics.server.configuration.key import Key, variable_of
from scalable_topics.server.configuration.kinds import Plain
from scalable_topics.server.configuration.settings import Configuration


class Declared(Struct, frozen=True, kw_only=True):
    """A key, and its place among the settings."""

    section: str
    field: str
    key: Key
    default: object

    @property
    def name(self) -> str:
        return self.key.name

    def value_in(self, configuration: Configuration) -> object:
        return getattr(getattr(configuration, self.section), self.field)

    def shown_in(self, configuration: Configuration) -> Plain:
        """A secret is shown as `***`."""
        return self.key.kind.show(self.value_in(configuration))

    @property
    def doc(self) -> str:
        return _documentation()[_SECTIONS[self.section].__name__, self.field]


class Spelling(Struct, frozen=True):
    """A name that takes a value of a key."""

    declared: Declared
    name: str
    is_file: bool = False


def section_doc(section: str) -> str:
    return _documentation()[_SECTIONS[section].__name__, ""]


@cache
def _documentation() -> dict[tuple[str, str], str]:
    """(class, field) → docstring. Python forgets those of fields, so the source is asked."""
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(settings)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name, ""] = _joined(ast.get_docstring(node) or "")
            for field, text in zip(node.body, node.body[1:], strict=False):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                        found[node.name, name] = _joined(doc)
    return found


def _joined(text: str) -> str:
    return " ".join(text.split())


def build(values: dict[tuple[str, str], object]) -> Configuration:
    """(section, field) → value; what is missing has its default."""
    sections = {
        section: kind(**{field: value for (of, field), value in values.items() if of == section})
        for section, kind in _SECTIONS.items()
    }
    return Configuration(**sections)  # type: ignore[arg-type]  # each section is of the type of its field


def _declared() -> list[Declared]:
    return [
        Declared(
            section=section,
            field=field.name,
            key=next(part for part in get_args(field.type) if isinstance(part, Key)),
            default=field.default,
        )
        for section, kind in _SECTIONS.items()
        for field in fields(kind)
        if field.default is not msgspec.NODEFAULT
    ]


_SECTIONS: Final[dict[str, type[Struct]]] = {field.name: field.type for field in fields(Configuration)}
KEYS: Final = tuple(_declared())
SPELLINGS: Final = {
    spelling.name: spelling
    for one in KEYS
    for spelling in (
        *(Spelling(one, name) for name in one.key.spellings),
        *((Spelling(one, one.key.file_spelling, is_file=True),) if one.key.file_spelling else ()),
    )
}
VARIABLES: Final = {variable_of(name): spelling for name, spelling in SPELLINGS.items()}
DECLARED: Final = {one.name: one for one in KEYS}
