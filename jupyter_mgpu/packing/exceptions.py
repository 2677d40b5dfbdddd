"""How exceptions travel, also those whose __init__ or attributes pickle cannot cope with."""

import types
from typing import Any


def reduce_exception(error: BaseException) -> Any:
    """Reduce an exception so that its own __init__ need not run again.

    pickle calls the class with `args`, which fails where __init__ takes others. Classes with C
    initialisers, or with pickling rules of their own, are left to pickle.
    """
    cls = type(error)
    own_rules = (cls.__reduce__, cls.__reduce_ex__)
    if not isinstance(cls.__init__, types.FunctionType):
        return NotImplemented
    if any(isinstance(rule, types.FunctionType) for rule in own_rules):
        return NotImplemented
    reduced: Any = error.__reduce__()
    return rebuild_exception, (cls, *reduced[1:2]), *reduced[2:]


def rebuild_exception(cls: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Make an exception without its Python __init__, but with the one of its builtin base."""
    error = cls.__new__(cls, *arguments)
    error.args = arguments
    builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        builtin.__init__(error, *arguments)
    except TypeError:  # arguments that the builtin base does not take; `args` has them
        error.args = arguments
    return error
