"""HTML of the views: inline styles only, readable in light, dark, untrusted and exported notebooks.

Colours come from JupyterLab's variables; their fallbacks stay readable on white and on black.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence

BORDER = "var(--jp-border-color2, rgba(128, 128, 128, 0.45))"
DIM = "var(--jp-content-font-color2, #808080)"
ERROR = "var(--jp-error-color1, #d32f2f)"
INDENT = "var(--jp-code-padding, 5px)"
"""Where plain outputs begin."""
MONO = "var(--jp-code-font-family, monospace)"
SIZE = "var(--jp-code-font-size, 13px)"

_SEQUENCE = re.compile(r"\x1b\[([0-9;:]*)m|\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# Middle tones: each has a contrast of at least 3:1 on white and on JupyterLab's dark grey.
_COLORS = (
    "#767676", "#d9404a", "#2e9440", "#a87b00", "#3d7fd9", "#b455c6", "#1a8f9c", "#8a8a8a",
    "#808080", "#e5535d", "#35a84a", "#b88600", "#5b95e8", "#c56bd6", "#1fa3b1", "#9a9a9a",
)  # fmt: skip
# On a coloured ground black and white are what they are, and text without a colour is black.
_ON_COLOR = {_COLORS[0]: "#000", _COLORS[7]: "#fff", _COLORS[15]: "#fff"}


def escape(text: str) -> str:
    """Return text as HTML shows it."""
    return html.escape(_UNPRINTABLE.sub("", text), quote=False)


def strip_escapes(text: str) -> str:
    """Return text without escape sequences."""
    return _UNPRINTABLE.sub("", _SEQUENCE.sub("", text))


def lines_to_html(lines: Iterable[str]) -> str:
    """Turn lines with ANSI colours into the inside of a `<pre>`."""
    style: dict[str, str] = {}
    out: list[str] = []
    for line in lines:
        position = 0
        for match in _SEQUENCE.finditer(line):
            out.append(_span(line[position : match.start()], style))
            position = match.end()
            if match.group(1) is not None:
                _apply(match.group(1), style)
        out.append(_span(line[position:], style))
        out.append("\n")
    return "".join(out)


def _span(text: str, style: dict[str, str]) -> str:
    if not text:
        return ""
    if not style:
        return escape(text)
    if "background-color" in style:
        color = style.get("color", "#000")
        style = {**style, "color": _ON_COLOR.get(color, color)}
    css = ";".join(f"{name}:{value}" for name, value in style.items())
    return f'<span style="{css}">{escape(text)}</span>'


def _apply(parameters: str, style: dict[str, str]) -> None:
    """Change a style as an SGR sequence says (ECMA-48, 8.3.117)."""
    codes = [int(code) if code else 0 for code in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style.clear()
        elif code == 1:
            style["font-weight"] = "bold"
        elif code == 3:
            style["font-style"] = "italic"
        elif code == 4:
            style["text-decoration"] = "underline"
        elif code == 22:
            style.pop("font-weight", None)
        elif code == 39:
            style.pop("color", None)
        elif code == 49:
            style.pop("background-color", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["color"] = _COLORS[code - 30 if code < 90 else code - 82]
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style["background-color"] = _COLORS[code - 40 if code < 100 else code - 92]
        elif code in (38, 48):
            color = _extended(codes)
            if color:
                style["color" if code == 38 else "background-color"] = color


def _extended(codes: list[int]) -> str | None:
    """Read a colour of the 256 or of all; what was read is removed."""
    mode = codes.pop(0) if codes else 0
    if mode == 2 and len(codes) >= 3:
        red, green, blue = (min(codes.pop(0), 255) for _ in range(3))
        return f"#{red:02x}{green:02x}{blue:02x}"
    if mode != 5 or not codes:
        return None
    number = min(codes.pop(0), 255)
    if number < 16:
        return _COLORS[number]
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    number -= 16
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = levels[number // 36], levels[number // 6 % 6], levels[number % 6]
    return f"#{red:02x}{green:02x}{blue:02x}"


def switches(titles: Mapping[str, str]) -> str:
    """Draw what folds lanes, invisibly: a lane is drawn anew at each update, this is not.

    Args:
        titles: The lanes' titles by their keys.
    """
    boxes = "".join(
        f'<input type="checkbox" id="{key}" aria-label="fold {escape(title)}" style="opacity:0">'
        for key, title in titles.items()
    )
    rules = "".join(
        f".{key}-title::before{{content:'▾ '}}"
        f"body:has(#{key}:checked) .{key}-title::before{{content:'▸ '}}"
        f"body:has(#{key}:checked) .{key}{{display:none !important}}"
        for key in titles
    )
    return f'<div style="position:absolute;height:0">{boxes}</div><style>{rules}</style>'


def lane(title: str, lines: Sequence[str], *, key: str, note: str = "", outcome: str = "") -> str:
    """Draw one rank's text, scrolled to its end; `switches` with the same key folds it."""
    flag = f' <span style="color:{ERROR}">{escape(outcome)}</span>' if outcome else ""
    dropped = f'<div style="color:{DIM};font-size:90%">{escape(note)}</div>' if note else ""
    # A reversed column starts at its bottom: the newest lines show without a script. The text must
    # not shrink: it would scroll by itself, from its top.
    return (
        f'<div style="border-left:3px solid {BORDER};padding-left:8px;margin:2px 0">'
        f'<label for="{key}" class="{key}-title" style="color:{DIM};font-family:{MONO};'
        f'font-size:{SIZE};cursor:pointer">{escape(title)}{flag}</label>'
        f'<div class="{key}">{dropped}'
        '<div style="display:flex;flex-direction:column-reverse;max-height:24em;overflow:auto">'
        f'<pre style="flex:none;margin:0;padding:0;overflow:visible;background:transparent;'
        f'font-family:{MONO};font-size:{SIZE};white-space:pre-wrap">{lines_to_html(lines)}</pre>'
        "</div></div></div>"
    )


def header(title: str) -> str:
    """Draw the line above what a rank shows."""
    style = f"color:{DIM};font-family:{MONO};font-size:{SIZE};padding-left:{INDENT}"
    return f'<div style="{style}">{escape(title)}</div>'


def labelled_text(title: str, text: str) -> str:
    """Draw a value's text with who has it."""
    return (
        f'<div style="font-family:{MONO};font-size:{SIZE};padding-left:{INDENT}">'
        f'<span style="color:{DIM}">{escape(title)}</span>'
        f'<pre style="margin:0;padding:0 0 0 11px;background:transparent;font-family:{MONO};'
        f'font-size:{SIZE};white-space:pre-wrap">{lines_to_html(text.splitlines())}</pre></div>'
    )


def bar(title: str, share: float | None, text: str, color: str) -> str:
    """Draw a progress bar with a line of text; without a share there is no bar to fill."""
    width = "" if share is None else f"width:{share:.1%};"
    filled = f'<div style="{width}height:100%;background:{color}"></div>' if width else ""
    return (
        f'<div style="display:flex;align-items:center;gap:8px;font-family:{MONO};font-size:{SIZE}">'
        f'<span style="color:{DIM}">{escape(title)}</span>'
        '<div style="flex:0 1 16em;height:0.7em;border-radius:3px;overflow:hidden;'
        f'border:1px solid {BORDER}">{filled}</div>'
        f"<span>{escape(text)}</span></div>"
    )
