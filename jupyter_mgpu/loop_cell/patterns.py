"""Takes a statement that changes a name apart: what engines evaluate, what the kernel replays."""

import ast
import copy
from typing import TypeVar

from jupyter_mgpu.loop_cell.records import Site, SiteForm, key_of
from jupyter_mgpu.loop_cell.scopes import root_name

FOLDING_METHODS = frozenset(
    {
        "append",
        "extend",
        "update",
        "add",
        "appendleft",
        "extendleft",
        "insert",
        "discard",
        "setdefault",
    }
)
KEEPING_METHODS = frozenset({"append", "add", "appendleft", "insert", "setdefault"})
"""Those that keep their argument itself, so that later changes to it are seen."""
_OPERATORS: dict[type[ast.operator | ast.boolop], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>", ast.And: "and", ast.Or: "or",
}  # fmt: skip

Node = TypeVar("Node", bound=ast.expr | ast.keyword)


class _NotAFoldError(Exception):
    """An expression is not of the form `x op e` or `f(x, e)`."""


class Operands:
    """Takes operands out of expressions, and leaves names in their places.

    Args:
        prefix: What the names begin with.

    Attributes:
        values: The operands, in the order in which Python evaluates them.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.values: list[ast.expr] = []

    def take(self, node: ast.expr) -> ast.expr:
        """Return what stands for an expression in the kernel."""
        match node:
            case ast.Constant():
                return node
            case ast.Starred(value=value):
                return _with(node, value=self.take(value))
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = {"lower": lower, "upper": upper, "step": step}
                return _with(node, **{name: e and self.take(e) for name, e in parts.items()})
            case ast.Tuple(elts=elts) if any(isinstance(e, ast.Slice | ast.Starred) for e in elts):
                return _with(node, elts=[self.take(element) for element in elts])
        self.values.append(node)
        return _placeholder(self._prefix, len(self.values) - 1, node)

    def take_call(self, call: ast.Call, func: ast.expr) -> ast.Call:
        """Return a call with its arguments taken out."""
        keywords = [_with(word, value=self.take(word.value)) for word in call.keywords]
        return _with(call, func=func, args=[self.take(e) for e in call.args], keywords=keywords)

    def take_chain(self, node: ast.expr) -> ast.expr:
        """Return `a[i].b[j]` or `a.setdefault(i, [])` with its indexes taken out."""
        match node:
            case ast.Attribute(value=value):
                return _with(node, value=self.take_chain(value))
            case ast.Subscript(value=value, slice=index):
                return _with(node, value=self.take_chain(value), slice=self.take(index))
            case ast.Call(func=func):
                return self.take_call(node, self.take_chain(func))
        return node

    def take_fold(self, node: ast.expr, name: str) -> ast.expr:
        """Return an expression in which all but one name is taken out.

        Raises:
            _NotAFoldError: If the name's value is used in another way than by operators and calls.
        """
        match node:
            case ast.Name():
                return node
            case ast.BinOp(left=left, right=right):
                return _with(node, left=self._part(left, name), right=self._part(right, name))
            case ast.BoolOp(values=values):
                return _with(node, values=[self._part(value, name) for value in values])
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return _with(node, elts=[self._part(element, name) for element in elts])
            case ast.Starred(value=value):
                return _with(node, value=self._part(value, name))
            case ast.Call():
                return self._take_call_fold(node, name)
        raise _NotAFoldError

    def _take_call_fold(self, node: ast.Call, name: str) -> ast.expr:
        func = node.func
        if _mentions(func, name):
            if not isinstance(func, ast.Attribute):
                raise _NotAFoldError
            func = _with(func, value=self.take_fold(func.value, name))
        elif dotted(func) is None:
            raise _NotAFoldError
        args = [self._part(argument, name) for argument in node.args]
        keywords = [_with(word, value=self._part(word.value, name)) for word in node.keywords]
        return _with(node, func=func, args=args, keywords=keywords)

    def _part(self, node: ast.expr, name: str) -> ast.expr:
        return self.take_fold(node, name) if _mentions(node, name) else self.take(node)


def _with(node: Node, **fields: object) -> Node:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _placeholder(prefix: str, number: int, at: ast.AST) -> ast.Name:
    return ast.copy_location(ast.Name(f"{prefix}{number}", ast.Load()), at)


def _mentions(node: ast.AST, name: str) -> int:
    return sum(isinstance(child, ast.Name) and child.id == name for child in ast.walk(node))


def dotted(node: ast.expr) -> str | None:
    """Return `a.b.c` as text, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return inner and f"{inner}.{node.attr}"
    return None


def is_fold(statement: ast.AST, name: str) -> bool:
    """Tell whether a statement has one of the forms `x += e`, `x = x op e`, `x = f(x, e)`."""
    if isinstance(statement, ast.AugAssign):
        return True
    if not isinstance(statement, ast.Assign) or _mentions(statement.value, name) != 1:
        return False
    operands = Operands("operand")
    try:
        operands.take_fold(statement.value, name)
    except _NotAFoldError:
        return False
    has_constant = any(isinstance(node, ast.Constant) for node in ast.walk(statement.value))
    return bool(operands.values) or has_constant


def fold_site(statement: ast.Assign | ast.AugAssign, name: str, prefix: str) -> Site:
    """Make the site of `x += e`, `x = x op e` or `x = f(x, e)`."""
    operands = Operands(prefix)
    replayed: ast.stmt
    if isinstance(statement, ast.AugAssign):
        replayed = copy.copy(statement)
        replayed.value = operands.take(statement.value)
        form, operation = SiteForm.AUGMENTED, _OPERATORS[type(statement.op)]
    else:
        replayed = copy.copy(statement)
        replayed.value = operands.take_fold(statement.value, name)
        form, operation = SiteForm.REBINDING, _operation(statement.value)
    return Site(name, form, key_of(statement), replayed, tuple(operands.values), operation)


def _operation(value: ast.expr) -> str:
    match value:
        case ast.BinOp(op=op) | ast.BoolOp(op=op):
            return _OPERATORS[type(op)]
        case ast.Call(func=ast.Attribute(attr=method) as func):
            return dotted(func) or method
        case ast.Call(func=func):
            return dotted(func) or "call"
    return "[*]"


def item_site(statement: ast.AugAssign, name: str, prefix: str) -> Site:
    """Make the site of `a[k] += e`."""
    operands = Operands(prefix)
    replayed = copy.copy(statement)
    replayed.target = operands.take_chain(statement.target)  # type: ignore[assignment] # its kind
    replayed.value = operands.take(statement.value)
    operation = _OPERATORS[type(statement.op)]
    values = tuple(operands.values)
    return Site(name, SiteForm.ITEM, key_of(statement), replayed, values, operation)


def method_site(statement: ast.Expr, name: str, prefix: str) -> Site:
    """Make the site of `a.append(e)`, `a[k].append(e)` or `a.setdefault(k, []).append(e)`."""
    operands = Operands(prefix)
    replayed = copy.copy(statement)
    call = statement.value
    replayed.value = operands.take_chain(call)
    method = (
        call.func.attr
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        else ""
    )
    values = tuple(operands.values)
    return Site(name, SiteForm.METHOD, key_of(statement), replayed, values, f".{method}")


def store_site(target: ast.Subscript, name: str, prefix: str) -> Site:
    """Make the site of `a[i] = e`, for one of the targets of an assignment."""
    operands = Operands(prefix)
    replayed_target = operands.take_chain(target)
    value = _placeholder(prefix, len(operands.values), target)
    replayed = ast.copy_location(ast.Assign([replayed_target], value), target)
    values = tuple(operands.values)
    return Site(name, SiteForm.STORE, key_of(target), replayed, values, "=")


def folding_receiver(statement: ast.Expr) -> ast.Name | None:
    """Return the name at the root of a statement such as `a[k].append(e)`."""
    match statement.value:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
            return root_name(receiver) if method in FOLDING_METHODS else None
    return None


def reads_an_element(site: Site) -> bool:
    """Tell whether replaying a site looks an element up, which may fail in the kernel only."""
    if site.form is SiteForm.ITEM:
        return True
    if site.form is not SiteForm.METHOD or not isinstance(site.statement, ast.Expr):
        return False
    call = site.statement.value
    receiver = (
        call.func.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        else None
    )
    return (
        any(isinstance(node, ast.Subscript) for node in ast.walk(receiver)) if receiver else False
    )
