"""Makes the function of one iteration: it records what the cell would change, and returns that."""

import ast
import copy
import types
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.loop_cell import effects
from jupyter_mgpu.loop_cell.patterns import KEEPING_METHODS
from jupyter_mgpu.loop_cell.records import (
    Classification,
    Site,
    SiteForm,
    Slot,
    key_of,
)

_NAME = "parfor_iteration"
# What makes a new object each time, that no name of the iteration refers to.
_NEW = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.JoinedStr, ast.List, ast.Tuple,
    ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp,
)  # fmt: skip
_MAGIC_LINE = ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
_HELPERS = ("read", "settle", "snapshot", "stored")


def iteration_function(
    loop: Classification, namespace: dict[str, Any]
) -> Callable[[Any], tuple[tuple[Any, ...], ...]]:
    """Make the function that runs one iteration.

    It takes an item of `loop_items` and returns what the iteration did to names of the kernel: a
    tuple of (site's number, operand, ...), in the order in which it happened. Broadcast names are
    its globals, so that they travel with it.

    Args:
        loop: The cell.
        namespace: The kernel's names, which become the function's globals.
    """
    builder = _Builder(loop, namespace)
    function = compile_function(builder.definition(), loop.filename, namespace)
    helpers = [getattr(effects, helper) for helper in _HELPERS]
    function.__defaults__ = tuple(helpers)
    return function


def compile_function(
    definition: ast.FunctionDef, filename: str, namespace: dict[str, Any]
) -> types.FunctionType:
    """Compile a function's definition, without running it in the namespace."""
    module = ast.fix_missing_locations(ast.Module([definition], []))
    code = compile(module, filename, "exec", dont_inherit=True)
    (own,) = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return types.FunctionType(own, namespace)


def function_definition(
    name: str, parameters: list[str], body: list[ast.stmt], line: int
) -> ast.FunctionDef:
    """Return the definition of a function without defaults."""
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(parameter) for parameter in parameters],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    definition = ast.FunctionDef(name, arguments, body, [])
    definition.type_params = []  # type: ignore[attr-defined,unused-ignore] # from Python 3.12 on
    definition.lineno = definition.end_lineno = line
    definition.col_offset = definition.end_col_offset = 0
    return definition


class _Builder(ast.NodeTransformer):
    """Rewrites the body: changes become records, and slices become what travelled."""

    def __init__(self, loop: Classification, namespace: dict[str, Any]) -> None:
        self._loop, self._namespace = loop, namespace
        self._sites = {site.key: number for number, site in enumerate(loop.sites)}
        self._item, self._records = loop.fresh("_item"), loop.fresh("_records")
        self._helpers = {helper: loop.fresh(f"_{helper}") for helper in _HELPERS}
        self._value = loop.fresh("_value")
        element = loop.fresh("_element")
        self._elements = {slot.name: f"{element}{n}" for n, slot in enumerate(loop.slots)}
        self._slots = {key: slot for slot in loop.slots for key in slot.reads}
        self._written = {slot.name: slot for slot in loop.slots if slot.is_written}
        self._num_values = 0
        self._is_last = False

    def definition(self) -> ast.FunctionDef:
        """Return the whole function.

        The body stays within a loop, over the one item: targets and `continue` mean what they
        mean there.
        """
        body = [copy.deepcopy(statement) for statement in self._loop.body]
        rewritten: list[ast.stmt] = []
        for number, statement in enumerate(body, 1):
            is_simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr)
            self._is_last = number == len(body) and is_simple
            rewritten += self._statements(statement)
        target = copy.deepcopy(self._loop.header.target)
        loop = ast.For(target, _tuple([_load(self._item)]), rewritten, [])
        ast.copy_location(loop, _MAGIC_LINE)
        end = _parse(f"return tuple({self._records})", _MAGIC_LINE)
        parameters = [self._item, *self._helpers.values()]
        return function_definition(_NAME, parameters, [*self._prologue(), loop, *end], 1)

    def _prologue(self) -> list[ast.stmt]:
        lines = [f"{self._records} = []"]
        if self._elements:
            elements = ", ".join(self._elements.values())
            lines.append(f"{self._item}, {elements} = {self._item}")
        for name in self._written:
            element = self._elements[name]
            lines.append(f"{element} = {self._helpers['snapshot']}({element})")
        return _parse("\n".join(lines), _MAGIC_LINE)

    def _statements(self, statement: ast.stmt) -> list[ast.stmt]:
        result = self.visit(statement)
        return result if isinstance(result, list) else [result]

    # Changes of kernel names

    def visit_Assign(self, node: ast.Assign) -> Any:
        number = self._sites.get(key_of(node))
        if number is not None:
            return self._record(number, node, self._operands(self._loop.sites[number]))
        values: list[tuple[int, str]] = []
        targets = [self._take_stores(target, values) for target in node.targets]
        if not values:
            return self.generic_visit(node)
        assign = ast.copy_location(ast.Assign(targets, self.visit(node.value)), node)
        return [assign, *(record for value in values for record in self._store(*value, node))]

    def _take_stores(self, target: ast.expr, values: list[tuple[int, str]]) -> ast.expr:
        """Replace `a[i]` in a target by a name, whose value is recorded afterwards."""
        if isinstance(target, ast.Tuple | ast.List):
            target.elts = [self._take_stores(element, values) for element in target.elts]
        elif isinstance(target, ast.Starred):
            target.value = self._take_stores(target.value, values)
        elif isinstance(target, ast.Subscript) and key_of(target) in self._sites:
            name = self._new_value()
            values.append((self._sites[key_of(target)], name))
            return ast.copy_location(ast.Name(name, ast.Store()), target)
        else:
            return self.visit(target)  # type: ignore[no-any-return] # an expression
        return target

    def _store(self, number: int, value: str, at: ast.stmt) -> list[ast.stmt]:
        site = self._loop.sites[number]
        value_now: ast.expr = _load(value)
        if effects.is_array(self._namespace.get(site.name)):
            value_now = self._as_it_is(value_now)
        records = self._record(number, at, [*self._operands(site), value_now])
        if site.name in self._written:
            records += self._update(site.name, value, at)
        return records

    def _update(self, name: str, value: str, at: ast.stmt) -> list[ast.stmt]:
        """Let later reads of `a[i]` in this iteration see what was stored."""
        element, stored = self._elements[name], self._helpers["stored"]
        return _parse(f"{element} = {stored}({element}, {value})", at)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        number = self._sites.get(key_of(node))
        if number is None:
            return self.generic_visit(node)
        site = self._loop.sites[number]
        if site.name not in self._written or site.form is not SiteForm.ITEM:
            return self._record(number, node, self._operands(site))
        return self._fold_element(number, node)

    def _fold_element(self, number: int, node: ast.AugAssign) -> list[ast.stmt]:
        """Record `a[i] += e`, and do the same to the element that the iteration reads."""
        site = self._loop.sites[number]
        operands = self._operands(site)
        operand, element = self._new_value(), self._new_value()
        read, snapshot = self._helpers["read"], self._helpers["snapshot"]
        evaluate = ast.Assign([ast.Name(operand, ast.Store())], self.visit(node.value))
        old = _parse(f"{element} = {snapshot}({read}({self._elements[site.name]}))", node)
        fold = ast.AugAssign(ast.Name(element, ast.Store()), node.op, _load(operand))
        if not isinstance(node.value, ast.Constant):  # which stands in the kernel's statement
            operands[-1] = self._as_it_is(_load(operand))
        records = self._record(number, node, operands)
        update = self._update(site.name, element, node)
        statements = [evaluate, *records, *old, fold, *update]
        return [ast.copy_location(statement, node) for statement in statements]

    def visit_Expr(self, node: ast.Expr) -> Any:
        number = self._sites.get(key_of(node))
        if number is None:
            return self.generic_visit(node)
        return self._record(number, node, self._operands(self._loop.sites[number]))

    def _operands(self, site: Site) -> list[ast.expr]:
        keeps = site.form is SiteForm.METHOD and site.operation.removeprefix(".") in KEEPING_METHODS
        found = []
        for operand in site.operands:
            value = self.visit(copy.deepcopy(operand))
            found.append(value if keeps or isinstance(value, _NEW) else self._as_it_is(value))
        return found

    def _as_it_is(self, value: ast.expr) -> ast.expr:
        """Keep a value from what the iteration does later; after its end there is nothing."""
        helper = self._helpers["settle" if self._is_last else "snapshot"]
        return ast.copy_location(ast.Call(_load(helper), [value], []), value)

    def _record(self, number: int, at: ast.stmt, operands: list[ast.expr]) -> list[ast.stmt]:
        record = _tuple([ast.Constant(number), *operands])
        call = ast.Call(ast.Attribute(_load(self._records), "append", ast.Load()), [record], [])
        return [ast.copy_location(ast.Expr(call), at)]

    def _new_value(self) -> str:
        self._num_values += 1
        return f"{self._value}{self._num_values}"

    # Slices

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        slot: Slot | None = self._slots.get(key_of(node))
        if slot is None:
            return self.generic_visit(node)  # type: ignore[return-value] # the node itself
        element = _load(self._elements[slot.name])
        return ast.copy_location(ast.Call(_load(self._helpers["read"]), [element], []), node)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _tuple(elements: list[ast.expr]) -> ast.Tuple:
    return ast.Tuple(elements, ast.Load())


def _parse(source: str, at: ast.stmt) -> list[ast.stmt]:
    """Parse generated statements, which tracebacks then show as the user's statement."""
    statements = ast.parse(source).body
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt | ast.expr):
                ast.copy_location(node, at)
    return statements
