"""The mutants of a module: its source with one expression or statement changed.

mutmut says what may become of a node. Left out is what decides nothing that tests should ask for
(strings, annotations, decorators, imports, what a `raise` says, the `strict` of `zip`),
and what mypy finds: a value or an argument that becomes None.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_assignment, operator_lambda

_UNCHANGED = (
    *(cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.Raise),
    *(cst.SimpleString, cst.FormattedString, cst.ConcatenatedString),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module, named by the module, the line, and its place among the module's."""

    path: str
    number: int
    line: int
    _module: cst.Module
    _node: cst.CSTNode
    _becomes: cst.CSTNode

    def __str__(self) -> str:
        return f"{self.path}:{self.line} #{self.number}"

    def original(self) -> str:
        """The whole module, as it is."""
        return self._module.code

    def source(self) -> str:
        """The whole module, changed."""
        changed = self._module.deep_replace(self._node, self._becomes)
        assert isinstance(changed, cst.Module)
        return changed.code

    def diff(self, context: int = 3) -> list[str]:
        """Unified, without its two head lines."""
        before, after = self.original().splitlines(), self.source().splitlines()
        return list(difflib.unified_diff(before, after, n=context, lineterm=""))[2:]

    def fragment(self) -> tuple[str, str]:
        """Of the first line that changes, the changed node's part before and after.

        Costs a hundredth of `change`, which writes the whole module anew.
        """
        before, after = (
            self._module.code_for_node(node).splitlines() for node in (self._node, self._becomes)
        )
        pairs = zip_longest(before, after, fillvalue="")
        differing = (pair for pair in pairs if pair[0] != pair[1])
        old, new = next(differing, ("", ""))
        return old.strip(), new.strip()

    def change(self) -> tuple[str, str]:
        """The lines it takes away and those it puts in their place, without indentation."""
        lines = self.diff(context=0)
        taken, put = (
            "\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
        )
        return taken, put


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """All of them, in the order of the source."""
    wrapper = MetadataWrapper(cst.parse_module((root / path).read_text(encoding="utf-8")))
    positions = wrapper.resolve(PositionProvider)
    return [
        Mutant(path, number, positions[node].start.line, wrapper.module, node, becomes)
        for number, (node, becomes) in enumerate(_changes(wrapper.module))
    ]


def _changes(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """(node, what becomes of it) of a node and of all below it."""
    if isinstance(node, _UNCHANGED) or _is_size_or_type(node) or _is_strict(node):
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and operator not in (operator_assignment, operator_lambda):
            for becomes in operator(node):
                if not (_has_none_for_an_argument(node, becomes) or _is_not_strict(node, becomes)):
                    yield node, becomes
    for child in node.children:
        yield from _changes(child)


def _is_size_or_type(node: cst.CSTNode) -> bool:
    """Calls whose arguments are never right once changed; mutmut leaves them alone too."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name)
        and node.func.value in ("isinstance", "len", "cast")
    )


def _is_strict(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"


def _is_not_strict(node: cst.CSTNode, becomes: cst.CSTNode) -> bool:
    """Whether a `zip` no longer asserts equal lengths."""
    if not (isinstance(node, cst.Call) and isinstance(becomes, cst.Call)):
        return False
    before, after = ([arg for arg in call.args if _is_strict(arg)] for call in (node, becomes))
    return len(before) > len(after)


def _has_none_for_an_argument(node: cst.CSTNode, becomes: cst.CSTNode) -> bool:
    if not (isinstance(node, cst.Call) and isinstance(becomes, cst.Call)):
        return False
    pairs = zip(node.args, becomes.args, strict=False)
    return len(node.args) == len(becomes.args) and any(before is not now for before, now in pairs)
