"""Describe a value in a few words without running any code of the user's."""

import sys
from typing import Any

_MAX_TEXT = 80
_PLAIN = (int, float, complex, bool, type(None), str, bytes)
_SIZED = (list, tuple, dict, set, frozenset)


def describe(value: Any) -> dict[str, Any]:
    """Describe a value: type, shape, dtype, device and a short text. Never raises.

    The text is the value itself for numbers and strings, and a count for containers. A `__repr__`
    of a class that is not known to be quick and safe is never called.
    """
    kind = type(value)
    found: dict[str, Any] = {
        "type": kind.__name__,
        "shape": None,
        "dtype": None,
        "device": None,
        "repr": "",
    }
    try:
        _fill(found, kind, value)
    except Exception:  # noqa: BLE001 - a broken value must not hide the others
        found["repr"] = f"<{kind.__name__}>"
    return found


def _fill(found: dict[str, Any], kind: type, value: Any) -> None:
    if kind in _PLAIN:
        found["repr"] = _short(repr(value[:_MAX_TEXT] if kind in (str, bytes) else value))
    elif kind in _SIZED:
        found["shape"] = [len(value)]
        found["repr"] = f"{kind.__name__} of {len(value)}"
    elif _is_known(kind):
        found["shape"] = [int(size) for size in value.shape]
        dtype = getattr(value, "dtype", None)
        found["dtype"] = str(dtype).removeprefix("torch.") if dtype is not None else None
        device = getattr(value, "device", None)
        found["device"] = str(device) if device is not None else None
        found["repr"] = f"{kind.__name__}{tuple(found['shape'])}"
    elif issubclass(kind, type) or callable(value):
        found["repr"] = _short(f"<{kind.__name__} {_name(value)}>")
    else:
        found["repr"] = f"<{kind.__name__}>"


def _is_known(kind: type) -> bool:
    for module, names in (
        ("torch", ("Tensor",)),
        ("numpy", ("ndarray", "generic")),
        ("pandas", ("DataFrame", "Series")),
    ):
        loaded = sys.modules.get(module)
        for name in names:
            known = getattr(loaded, name, None)
            if isinstance(known, type) and issubclass(kind, known):
                return True
    return False


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", "") if type(value).__module__ == "builtins" else ""
    return name if isinstance(name, str) else ""


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
