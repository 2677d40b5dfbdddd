"""The items of a loop, each with the elements that the iteration reads."""

import ast
import builtins
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jupyter_mgpu.errors import LoopBodyError
from jupyter_mgpu.loop_cell.effects import Missing
from jupyter_mgpu.loop_cell.generate import compile_function, function_definition
from jupyter_mgpu.loop_cell.header import read_names
from jupyter_mgpu.loop_cell.records import Classification, Header, Slot


class LoopItems:
    """What is looped over; each element is looked up when its item is read.

    `operator.length_hint` tells how many there are, where that is known.

    Args:
        iterable: What the user loops over.
        length: How many items it has; None where that is not known.
        fetches: What looks the elements up in an item.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        length: int | None,
        fetches: tuple[Callable[[Any], Any], ...],
    ) -> None:
        self._iterable, self._length, self._fetches = iterable, length, fetches

    def __iter__(self) -> Iterator[Any]:
        if not self._fetches:
            yield from self._iterable
            return
        for item in self._iterable:
            yield (item, *(_fetched(fetch, item) for fetch in self._fetches))

    def __length_hint__(self) -> Any:
        return NotImplemented if self._length is None else self._length


def _fetched(fetch: Callable[[Any], Any], item: Any) -> Any:
    try:
        return fetch(item)
    except Exception as error:  # noqa: BLE001 - the iteration raises it where it reads the element
        return Missing(error)


def loop_items(loop: Classification, namespace: dict[str, Any]) -> LoopItems:
    """Evaluate what is looped over, once.

    Raises:
        LoopBodyError: If iterations may write the same element, which they also read.
        Exception: What evaluating raises, such as a TypeError where it is not iterable.
    """
    iterable, length = _evaluate(loop.header, loop.filename, namespace)
    check_iterable(iterable)  # now, not when the loop has begun
    for slot in loop.slots:
        if slot.is_written and not isinstance(namespace.get(slot.name), dict):
            _check_ends(slot, loop, namespace, iterable, length)
    fetches = tuple(_fetch(slot, loop, namespace) for slot in loop.slots)
    return LoopItems(iterable, length, fetches)


def check_iterable(iterable: Any) -> None:
    """Refuse what cannot be looped over; nothing is tried, which would start a loader's processes.

    Raises:
        TypeError: It says what was given.
    """
    if isinstance(iterable, Iterator) or hasattr(type(iterable), "__iter__"):
        return
    if hasattr(type(iterable), "__getitem__"):  # the old protocol, as of torch's data sets
        return
    hint = f" Did you mean range({iterable!r})?" if isinstance(iterable, int) else ""
    raise TypeError(f"{iterable!r} was given, but it cannot be looped over.{hint}")


def _check_ends(
    slot: Slot,
    loop: Classification,
    namespace: dict[str, Any],
    iterable: Iterable[Any],
    length: int | None,
) -> None:
    """Refuse indexes below and above 0: `a[-1]` and `a[n - 1]` are one element."""
    numbers = iterable if isinstance(iterable, range) else range(length or 1)
    if not numbers:
        return
    parts = slot.index.elts if isinstance(slot.index, ast.Tuple) else [slot.index]
    (part,) = [each for each in parts if slot.variable in read_names(each)]
    index = _function_of(part, slot, loop, namespace)
    first, last = index(numbers[0]), index(numbers[-1])
    if min(first, last) < 0 <= max(first, last):
        shown = f"{slot.name}[{ast.unparse(slot.index)}]"
        line = min(key.line for key in slot.reads)
        raise LoopBodyError(
            f"`{shown}` is read and written with indexes from {first} to {last}, but a negative "
            "one counts from the end: two iterations may have the same element. Loop over indexes "
            "from 0 on.",
            (loop.filename, line, None, None),
        )


def _evaluate(
    header: Header, filename: str, namespace: dict[str, Any]
) -> tuple[Iterable[Any], int | None]:
    match header.iterable:
        # These hide the length of what they go through.
        case ast.Call(func=ast.Name(id="enumerate" | "zip" as name), args=args, keywords=words) if (
            name not in namespace and not any(isinstance(each, ast.Starred) for each in args)
        ):
            values = [_value(each, filename, namespace) for each in args]
            options = {str(word.arg): _value(word.value, filename, namespace) for word in words}
            iterable = getattr(builtins, name)(*values, **options)
            sources = values[:1] if name == "enumerate" else values
            return iterable, _shortest(sources)
    value = _value(header.iterable, filename, namespace)
    return value, _shortest([value])


def _value(node: ast.expr, filename: str, namespace: dict[str, Any]) -> Any:
    code = compile(ast.Expression(node), filename, "eval", dont_inherit=True)
    return eval(code, namespace)


def _shortest(iterables: list[Any]) -> int | None:
    lengths = [operator.length_hint(iterable, -1) for iterable in iterables]
    known = [length for length in lengths if length >= 0]
    return min(known) if known else None


def _fetch(slot: Slot, loop: Classification, namespace: dict[str, Any]) -> Callable[[Any], Any]:
    """Make the function that looks a slot's element up in an item."""
    value = ast.Subscript(ast.Name(slot.name, ast.Load()), slot.index, ast.Load())
    function = _function_of(value, slot, loop, namespace)
    if slot.position is None:
        return function
    position = slot.position
    return lambda item: function(item[position])


def _function_of(
    value: ast.expr, slot: Slot, loop: Classification, namespace: dict[str, Any]
) -> types.FunctionType:
    """Make the function of a slot's loop variable that returns an expression's value."""
    definition = function_definition("element", [slot.variable], [ast.Return(value)], 1)
    return compile_function(definition, loop.filename, namespace)
