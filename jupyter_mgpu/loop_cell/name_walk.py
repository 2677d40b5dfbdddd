"""Follows the names of a loop body: which are assigned by now, and where the kernel's are read."""

# ruff: noqa: D102, N802 - the methods are named after the nodes that they visit

import ast
from collections.abc import Iterable
from typing import NoReturn

from jupyter_mgpu.branch_walk import BranchWalk
from jupyter_mgpu.loop_cell import header as headers
from jupyter_mgpu.loop_cell import patterns
from jupyter_mgpu.loop_cell.findings import Findings, Read
from jupyter_mgpu.loop_cell.kernel_names import KernelNames
from jupyter_mgpu.loop_cell.records import Header, Text, fresh
from jupyter_mgpu.loop_cell.scopes import bindings, root_name


class ClassNames(set[str]):
    """The names that a class body has bound so far, and will bind."""

    def __init__(self, later: Iterable[str]) -> None:
        super().__init__(("__module__", "__qualname__"))
        self.later = frozenset(later)


class NameWalk(BranchWalk):
    """Follows names: which are assigned by now, and where the kernel's are read.

    Args:
        header: The loop's header.
        body: The statements of the body.
        kernel: What is known of the kernel's names.
        text: The cell, for errors.
        identifiers: Every word of the cell.
    """

    def __init__(
        self,
        header: Header,
        body: list[ast.stmt],
        kernel: KernelNames,
        text: Text,
        identifiers: frozenset[str],
    ) -> None:
        self.findings = Findings()
        self.loop = frozenset(header.names)
        bound = bindings(body)
        self.reductions = frozenset(
            name
            for name, nodes in bound.items()
            if name not in self.loop and all(patterns.is_fold(node, name) for node in nodes)
        )
        self.temporaries = frozenset(bound) - self.reductions - self.loop
        self.rebound = self.loop & frozenset(bound)
        self._slice_variables = frozenset(headers.slice_variables(header)) - self.rebound
        self._kernel, self._text = kernel, text
        self._prefix = fresh("_operand", identifiers)
        self._assigned = set(self.loop)
        self._maybe = set(self.loop)
        # By name of a loop variable or temporary: the outer name whose parts it may be.
        self._aliases = _loop_aliases(header, kernel)
        self._inner: list[set[str]] = []  # the names of comprehensions and classes around
        self._num_tries = 0
        self._first_binding = {
            name: min(getattr(node, "lineno", 0) for node in nodes) for name, nodes in bound.items()
        }

    def _refuse(self, node: ast.AST, message: str) -> NoReturn:
        raise self._text.error(node, message)

    # Names

    def _is_inner(self, name: str) -> bool:
        return any(name in names for names in self._inner)

    def _is_outer(self, name: str) -> bool:
        """Tell whether a name is the kernel's here: a broadcast, sliced or reduction name."""
        return not self._is_inner(name) and name not in self.temporaries | self.loop

    def _outer_root(self, node: ast.expr) -> str | None:
        root = root_name(node)
        return root.id if root is not None and self._is_outer(root.id) else None

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._load(node)
        elif isinstance(node.ctx, ast.Store):
            self._bind(node.id, node)
        else:
            self._delete_name(node)

    def _load(self, node: ast.Name) -> None:
        name = node.id
        self._check_class_body(node)
        if self._is_inner(name):
            return
        self.findings.saw(name, node)
        if self._is_outer(name):
            self._read(Read(name, node))
        elif name not in self._maybe:
            line = self._first_binding.get(name, node.lineno)
            self._refuse(
                node,
                f"`{name}` is read on line {node.lineno} before the iteration assigns it (line "
                f"{line}): its value would come from another iteration, or from before the loop. "
                f"Assign it first. A sum or the like is written {name} += e, "
                f"{name} = max({name}, e) or {name} = f({name}, e).",
            )
        elif name not in self._assigned:
            self.findings.note(name, "may be unset where it is read")

    def _check_class_body(self, node: ast.Name) -> None:
        inner = self._inner[-1] if self._inner else None
        if not isinstance(inner, ClassNames) or node.id in inner or node.id not in inner.later:
            return
        if not self._is_outer(node.id):
            self._refuse(
                node,
                f"The class reads `{node.id}` of the iteration and binds a name like it, which a "
                "class inside a function cannot. Give one of them another name.",
            )

    def _read(self, read: Read) -> None:
        self.findings.reads.setdefault(read.name, []).append(read)

    def _bind(self, name: str, node: ast.AST, alias: str | None = None) -> None:
        if self._inner:
            self._inner[-1].add(name)
            return
        self.findings.saw(name, node)
        self._assigned.add(name)
        self._maybe.add(name)
        self._aliases.pop(name, None)
        if alias is not None:
            self._aliases[name] = alias

    def _delete_name(self, node: ast.Name) -> None:
        if self._inner:
            self._inner[-1].discard(node.id)
            return
        if self._is_outer(node.id):
            self._refuse(
                node,
                f"`del {node.id}` would delete a name of the kernel, which an engine cannot. "
                "Delete it in a cell after the loop.",
            )
        self.findings.saw(node.id, node)
        self._assigned.discard(node.id)

    def _alias_of(self, value: ast.expr | None) -> str | None:
        """Return the outer name of whose parts an expression is one, as in `row = a[i]`."""
        if not isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
            return None
        root = root_name(value)
        if root is None or self._is_inner(root.id):
            return None
        if not self._is_outer(root.id):
            return self._aliases.get(root.id)
        has_index = any(isinstance(node, ast.Subscript) for node in ast.walk(value))
        computes = has_index and not self._kernel.holds_its_elements(root.id)
        return None if computes else root.id

    # Reading slices

    def visit_Subscript(self, node: ast.Subscript) -> None:
        value = node.value
        if (
            isinstance(node.ctx, ast.Load)
            and isinstance(value, ast.Name)
            and self._is_outer(value.id)
        ):
            self._check_class_body(value)
            self.findings.saw(value.id, node)
            self._read(self._sliced(node, value.id))
            self.visit(node.slice)
        else:
            self.generic_visit(node)

    def _sliced(self, node: ast.Subscript, name: str) -> Read:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        variables = [self._variable_of(part) for part in parts]
        found = [variable for variable in variables if variable]
        if None in variables or len(found) != 1:
            return Read(name, node)
        return Read(name, node, node.slice, found[0])

    def _variable_of(self, part: ast.expr) -> str | None:
        """Return the loop variable of `i`, `i + k`, `k + i`, `i - k`; "" if the part is fixed."""
        if self._is_fixed(part):
            return ""
        match part:
            case ast.Name(id=name) if self._can_slice(name):
                return name
            case ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub(), right=offset):
                return name if self._can_slice(name) and self._is_fixed(offset) else None
            case ast.BinOp(left=offset, op=ast.Add(), right=ast.Name(id=name)):
                return name if self._can_slice(name) and self._is_fixed(offset) else None
        return None

    def _can_slice(self, name: str) -> bool:
        return name in self._slice_variables and not self._is_inner(name)

    def _is_fixed(self, part: ast.expr | None) -> bool:
        match part:
            case None | ast.Constant():
                return True
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                return True
            case ast.Name(id=name):
                return self._is_outer(name) and name not in self.reductions
            case ast.Slice(lower=lower, upper=upper, step=step):
                return all(map(self._is_fixed, (lower, upper, step)))
        return False


def _loop_aliases(header: Header, kernel: KernelNames) -> dict[str, str]:
    """Return the loop variables that may be parts of a container of the kernel, and of which."""
    sources = [header.iterable]
    if isinstance(header.iterable, ast.Call):
        function = header.iterable.func
        if headers.is_call(header.iterable, "enumerate") or headers.is_call(header.iterable, "zip"):
            sources = list(header.iterable.args)
        elif isinstance(function, ast.Attribute) and function.attr in ("items", "values"):
            sources = [function.value]
    roots = [root_name(source) for source in sources if not isinstance(source, ast.Call)]
    found = [root.id for root in roots if root is not None]
    # What a loader or a generator yields is made for the iteration, as far as is known.
    held = [name for name in found if kernel.has(name) and kernel.holds_its_elements(name)]
    return dict.fromkeys(header.names, held[0]) if held else {}
