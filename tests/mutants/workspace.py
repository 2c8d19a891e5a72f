"""The mutated copy of the package, in `mutants/`."""

import ast
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import libcst as cst
from msgspec import Struct
from mutmut.configuration import config
from mutmut.mutation.data import LineSpan, MutantLineSpans, SourceFileMutationData
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import (
    get_mutant_name,
    mangled_name_from_mutant_name,
    orig_function_and_class_names_from_key,
)

WORKSPACE = Path("mutants")
"""Where mutmut expects it, below the directory in which it is called."""

PACKAGE = "scalable_topics"
WRAPPERS = frozenset({"property", "cached_property", "lru_cache", "cache"})


class Mutant(Struct, frozen=True):
    """A function, and how it reads with one thing changed."""

    name: str
    """As mutmut calls it; `mutmut show` takes it."""
    path: Path
    line: int
    original: tuple[str, ...]
    mutated: tuple[str, ...]
    span: LineSpan
    """Where, in the workspace, the statement of the original is in which the change is: a test that does not come
    there cannot notice the change."""

    @property
    def module(self) -> str:
        """The mutated module, below the package: `model.layout`."""
        parts = self.path.with_suffix("").parts[1:]
        return ".".join(part for part in parts if part != "__init__")

    @property
    def function(self) -> str:
        """The mutated function within its module: `SegmentLayout.apply`."""
        return _plain_name(self.name)

    @property
    def place(self) -> str:
        """The mutated function, below the package: `model.layout.SegmentLayout.apply`."""
        return f"{self.module}.{self.function}"


def make_workspace() -> list[Mutant]:
    """Copy everything anew, mutate what is to be mutated.

    Always anew, because mutmut would keep tests and verdicts that the next change of the code made stale. Only the last
    report stays, until there is another.
    """
    WORKSPACE.mkdir(exist_ok=True)
    for entry in WORKSPACE.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.stem != "report":
            entry.unlink()
    for source in {*config().source_paths, *config().also_copy}:
        _copy(source, WORKSPACE / source)
    return [mutant for path in sorted(walk_mutatable_files()) for mutant in _mutate(path)]


def save_exit_codes(exit_codes: dict[str, int]) -> None:
    """Leave the outcome where `mutmut results`, `mutmut show` and `mutmut browse` look for it."""
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        data.exit_code_by_key = {name: exit_codes.get(name) for name in data.exit_code_by_key}
        data.save()


def unwrap(source: str) -> str:
    """Write `@property def f` as `def f` and `f = property(f)`, and so for all `WRAPPERS`.

    mutmut leaves decorated functions alone, because it copies a function together with its decorators. One function
    of the core in six would never be mutated.
    """
    return cst.parse_module(source).visit(_Unwrapper()).code


class _Unwrapper(cst.CSTTransformer):
    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802, ARG002 - the name and shape are libcst's
        return False

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.FlattenSentinel[cst.BaseStatement]:
        decorators = [decorator.decorator for decorator in original_node.decorators]
        if not decorators or not all(_is_wrapper(decorator) for decorator in decorators):
            return updated_node
        wrapped: cst.BaseExpression = original_node.name
        for decorator in reversed(decorators):
            wrapped = cst.Call(decorator, [cst.Arg(wrapped)])
        assignment = cst.Assign([cst.AssignTarget(original_node.name)], wrapped)
        return cst.FlattenSentinel([updated_node.with_changes(decorators=[]), cst.SimpleStatementLine([assignment])])


def _is_wrapper(decorator: cst.BaseExpression) -> bool:
    named = decorator.func if isinstance(decorator, cst.Call) else decorator
    return isinstance(named, cst.Name) and named.value in WRAPPERS


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _mutate(path: Path) -> Iterator[Mutant]:
    source = path.read_text(encoding="utf-8")
    made = mutate_file_contents(str(path), unwrap(source))
    (WORKSPACE / path).write_text(made.code, encoding="utf-8")
    data = SourceFileMutationData(path=path)
    data.exit_code_by_key = {get_mutant_name(path, name): None for name in made.mutant_names}
    data.hash_by_function_name = dict(made.hash_by_function_name)
    data.save()
    MutantLineSpans(path=path, span_by_function_name=made.line_span_by_function_name).save()
    beginnings = _beginnings(source)
    lines = made.code.splitlines()
    for name in made.mutant_names:
        where = made.line_span_by_function_name[f"{mangled_name_from_mutant_name(name)}__mutmut_orig"]
        original = _function(lines, where)
        mutated = _function(lines, made.line_span_by_function_name[name])
        first, last = _changed_lines(original, mutated)
        statement = _statement(original, first, last)
        yield Mutant(
            name=get_mutant_name(path, name),
            path=path,
            line=beginnings[_plain_name(name)] + first - _header(original),
            original=original,
            mutated=mutated,
            span=LineSpan(where.start + statement.start, where.start + statement.end),
        )


def _plain_name(name: str) -> str:
    function, owner = orig_function_and_class_names_from_key(name)
    return f"{owner}.{function}" if owner else function


def _beginnings(source: str) -> dict[str, int]:
    """The line of each `def` that mutmut may mutate."""
    module = ast.parse(source)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    return {
        prefix + node.name: node.lineno
        for prefix, body in [("", module.body), *((f"{owner.name}.", owner.body) for owner in classes)]
        for node in body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _header(function: Sequence[str]) -> int:
    return next(index for index, line in enumerate(function) if re.match(r"\s*(async )?def ", line))


def _changed_lines(original: Sequence[str], mutated: Sequence[str]) -> tuple[int, int]:
    """The first and the last line of the original, from 0, that are not in the mutant."""
    pairs = list(zip(original, mutated, strict=False))
    first = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
    backwards = zip(reversed(original[first:]), reversed(mutated[first:]), strict=False)
    same = next((index for index, (a, b) in enumerate(backwards) if a != b), len(mutated) - first)
    return first, max(first, len(original) - 1 - same)


def _function(lines: Sequence[str], span: LineSpan) -> tuple[str, ...]:
    """A function of the workspace, under the name that it has in the source."""
    return tuple(_GENERATED_NAME.sub(r"\1", line) for line in lines[span.start - 1 : span.end])


_GENERATED_NAME = re.compile(r"(?<=def )x(?:_|ǁ\w+ǁ)(\w+?)__mutmut_(?:orig|\d+)(?=\()")


def _statement(function: tuple[str, ...], first: int, last: int) -> LineSpan:
    """The smallest statement of a function that has all these lines; lines count from 0."""
    around = [span for span in _statements(function) if span.start <= first and last <= span.end]
    return min(around, key=lambda span: span.end - span.start, default=LineSpan(0, len(function) - 1))


@cache
def _statements(function: tuple[str, ...]) -> list[LineSpan]:
    tree = ast.parse("\n".join(["if True:", *(f" {line}" for line in function)]))
    return [
        LineSpan(node.lineno - 2, (node.end_lineno or 0) - 2) for node in ast.walk(tree) if isinstance(node, ast.stmt)
    ]
