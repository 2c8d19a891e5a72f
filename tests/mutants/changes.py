"""What can be wrong in a module: small changes of its text, one at a time.

Left alone is what mypy holds (annotations, decorators, the keywords of a class) and what only people read (docstrings,
logs, the sentences of errors).
"""

import ast
from collections.abc import Iterator
from difflib import unified_diff
from itertools import accumulate, pairwise
from typing import Final

from msgspec import Struct

OPPOSITES: Final = (
    *(("<", "<="), (">", ">="), ("==", "!="), ("is", "is not"), ("in", "not in"), ("and", "or")),
    *(("+", "-"), ("*", "/"), ("//", "%"), ("<<", ">>"), ("&", "^")),
)
SWAPS: Final = {old: new for one, other in OPPOSITES for old, new in ((one, other), (other, one))}


class Mutant(Struct, frozen=True):
    file: str
    original: str
    """The whole module."""
    mutated: str
    lines: range = range(0)
    """A test that comes to none of these cannot notice."""

    @property
    def diff(self) -> str:
        lines = unified_diff(self.original.splitlines(), self.mutated.splitlines(), lineterm="", n=1)
        return "\n".join([self.file, *list(lines)[2:]])


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    module = _Module(text)
    for node, lines in _nodes(ast.parse(text)):
        for start, end, new in module.edits(node):
            mutated = (module.data[:start] + new.encode() + module.data[end:]).decode()
            if mutated != text:
                yield Mutant(file, text, mutated, lines)


class _Module:
    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self._starts = [0, *accumulate(len(line) for line in self.data.splitlines(keepends=True))]

    def edits(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """From and to, in bytes, and what to write there."""
        match node:
            case ast.BinOp(left=left, right=right):
                yield from self._swap(left, right)
            case ast.Compare(left=left, comparators=others):
                for one, other in pairwise([left, *others]):
                    yield from self._swap(one, other)
            case ast.BoolOp(values=values):
                for one, other in pairwise(values):
                    yield from self._swap(one, other)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield self._instead(node, f"({ast.unparse(operand)})")
            case ast.Constant(value=bool(value)):
                yield self._instead(node, not value)
            case ast.Constant(value=int(value) | float(value)):
                yield self._instead(node, value + 1)
            case ast.Constant(value=str(value)):
                yield self._instead(node, repr(value + "XX"))
            case ast.Tuple(ctx=ast.Load(), elts=elements) | ast.List(ctx=ast.Load(), elts=elements) if elements[1:]:
                yield from (self._without(node, "elts", element) for element in elements)
            case ast.Call(keywords=keywords):
                for keyword in (keyword for keyword in keywords if keyword.arg != "name"):  # of a task
                    yield self._without(node, "keywords", keyword)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield from self._negate(test)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                for test in (test for generator in node.generators for test in generator.ifs):
                    yield from self._negate(test)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._instead(node, "return None")
            case ast.Continue():
                yield self._instead(node, "break")
            case ast.Raise() | ast.Break() | ast.AugAssign() | ast.Delete() | ast.Expr():
                yield self._instead(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._instead(node, "pass")

    def _swap(self, left: ast.expr, right: ast.expr) -> Iterator[tuple[int, int, str]]:
        start, end = self._span(left)[1], self._span(right)[0]
        between = self.data[start:end].decode()
        operator = " ".join(between.strip("() \n").split())
        if operator in SWAPS:
            yield start, end, between.replace(operator, SWAPS[operator])

    def _negate(self, test: ast.expr) -> Iterator[tuple[int, int, str]]:
        if not isinstance(test, ast.Compare | ast.UnaryOp | ast.BoolOp | ast.Constant):  # these have their own changes
            yield self._instead(test, f"(not ({ast.unparse(test)}))")

    def _without(self, node: ast.expr, field: str, one: ast.AST) -> tuple[int, int, str]:
        fields = dict(ast.iter_fields(node))
        fields[field] = [other for other in fields[field] if other is not one]
        return self._instead(node, ast.unparse(type(node)(**fields)))

    def _instead(self, node: ast.expr | ast.stmt, new: object) -> tuple[int, int, str]:
        return *self._span(node), str(new)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end = self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return self._starts[node.lineno - 1] + node.col_offset, end


def _nodes(parent: ast.AST, begin: int = 1) -> Iterator[tuple[ast.expr | ast.stmt, range]]:
    """What may be changed, and the lines from the beginning of the statement or clause around it to its own end."""
    for field, value in ast.iter_fields(parent):
        is_declaration = field == "keywords" and isinstance(parent, ast.ClassDef)
        if is_declaration or field in {"annotation", "returns", "decorator_list"} or isinstance(parent, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_for_people(child):
                continue
            clause = child.pattern if isinstance(child, ast.match_case) else child
            begins = clause.lineno if isinstance(clause, ast.stmt | ast.excepthandler | ast.pattern) else begin
            if isinstance(child, ast.expr | ast.stmt):
                yield child, range(begins, (child.end_lineno or 0) + 1)
            yield from _nodes(child, begins)


def _is_for_people(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()) | ast.Call(func=ast.Name(id="TypeVar")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
    return False
