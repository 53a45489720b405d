"""Changes of a module's code at one place at a time, made by Cosmic Ray and by two operators of this tool."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import parso.python.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.exceptions import CosmicRayTestingException
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

__all__ = ["Mutant", "mutant", "places"]

#: Of Cosmic Ray's operators, those whose changes are neither certain to be noticed nor certain to change nothing.
_COMPARISONS = (
    *("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
    *("Is_IsNot", "IsNot_Is"),
)
_ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "BitOr_BitAnd", "BitAnd_BitOr", "Mod_FloorDiv")
_CORE = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARISONS),
    *(f"ReplaceBinaryOperator_{pair}" for pair in _ARITHMETIC),
    *("ReplaceUnaryOperator_Delete_Not", "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr"),
    *("ReplaceOrWithAnd", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer"),
    *("NumberReplacer", "ZeroIterationForLoop"),
)


class ReplaceException(ExceptionReplacer):
    """Catches another exception. Cosmic Ray's own operator takes a dotted name for several names."""

    @staticmethod
    def _name_nodes(node: parso.tree.BaseNode) -> Sequence[parso.tree.NodeOrLeaf]:
        caught = node.children[1]
        if caught.type != "atom":
            return (caught,)
        inside = caught.children[1]
        return inside.children[::2] if inside.type == "testlist_comp" else (inside,)

    def mutate(self, node: parso.tree.BaseNode, index: int) -> parso.tree.BaseNode:
        self._name_nodes(node)[index].get_last_leaf().value = CosmicRayTestingException.__name__
        return node


class RemoveStatement(Operator):
    """Replaces a statement that has an effect by ``pass``: a call, an assignment to an attribute, a raise."""

    def mutation_positions(self, node: parso.tree.NodeOrLeaf) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type == "simple_stmt" and _has_effect(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: parso.tree.BaseNode, index: int) -> parso.tree.BaseNode:
        del index  # a statement can be removed in one way
        removed = node.children[0]
        node.children[0] = parso.python.tree.Name("pass", removed.start_pos, removed.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> Sequence[object]:
        return ()


def _has_effect(statement: parso.tree.NodeOrLeaf) -> bool:
    if statement.type == "raise_stmt" or getattr(statement, "value", None) == "raise":
        return True
    if statement.type == "del_stmt":  # `del name` only says that a parameter is not used
        return bool(statement.children[1].type == "atom_expr")
    if statement.type == "expr_stmt":
        target, operator = statement.children[0], statement.children[1]
        if getattr(operator, "value", "=") != "=":
            return True
        # Whatever __init__ sets is missed by every test: removing that shows nothing.
        function = parso.tree.search_ancestor(statement, "funcdef")
        return target.type == "atom_expr" and (function is None or function.name.value != "__init__")
    return bool(statement.type == "atom_expr" and statement.get_last_leaf().value == ")")


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: the module's path within the package.
        operator: what is changed, and into what.
        occurrence: the how-many-th place of the module for this operator.
        line: where, from 1.
        code: the changed source.
        old: the line before, without its indentation.
        new: the line after.
    """

    module: str
    operator: str
    occurrence: int
    line: int
    code: str = field(repr=False)
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module} | {self.operator} | {self.old} | {self.new}"

    def is_among(self, listed: Collection[str]) -> bool:
        """Whether the change is listed, alone or with all others of its operator in this line."""
        return str(self) in listed or f"{self.module} | {self.operator} | {self.old} | *" in listed


def places(source: str) -> list[list[tuple[str, int, tuple[int, int]]]]:
    """The changes of a module as (operator, occurrence, position), those at one position together."""
    skipped = list(_without_behaviour(source))
    found: dict[tuple[int, int], list[tuple[str, int, tuple[int, int]]]] = {}
    counts: Counter[str] = Counter()
    for node in ast_nodes(get_ast(source)):
        for name, operator in _operators().items():
            for at, _ in operator.mutation_positions(node):
                if not any(start <= at < end for start, end in skipped) and not _is_star(node):
                    found.setdefault(at, []).append((name, counts[name], at))
                counts[name] += 1
    return [found[at] for at in sorted(found)]


def _is_star(node: parso.tree.NodeOrLeaf) -> bool:
    """Whether a node is the star before parameters or arguments, which Cosmic Ray takes for a multiplication."""
    return getattr(node, "value", None) == "*" and node.parent.type != "term"


@cache
def _operators() -> dict[str, Operator]:
    provider = OperatorProvider()
    own: dict[str, Operator] = {"ExceptionReplacer": ReplaceException(), "RemoveStatement": RemoveStatement()}
    return {name: provider[name]() for name in _CORE} | own


def _without_behaviour(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where a change is of no interest: annotations, decorators, logging, and what only a type checker runs.

    So it is with ``strict`` of ``zip``, which is for sequences that have the same length by construction.
    """
    for node in ast.walk(ast.parse(source)):
        unwanted: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            unwanted = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            unwanted = [*node.decorator_list]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            unwanted = [node.annotation]
        elif (isinstance(node, ast.Call) and _is_logging(node)) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            unwanted = [node]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            unwanted = [keyword.value for keyword in node.keywords]
        for each in unwanted:
            if each is not None and each.end_lineno is not None and each.end_col_offset is not None:
                yield (each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)


def _is_logging(call: ast.Call) -> bool:
    return ast.unparse(call.func).startswith("_log.")


def mutant(module: str, source: str, operator: str, occurrence: int, at: tuple[int, int]) -> Mutant:
    """The change of a module that an operator makes at one of its places."""
    code = mutate_code(source, _operators()[operator], occurrence)
    assert code is not None
    before, after = source.split("\n"), code.split("\n")
    changed = next(i for i, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
    return Mutant(module, operator, occurrence, at[0], code, before[changed].strip(), after[changed].strip())
