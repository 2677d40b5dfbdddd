"""Decides what each name of a loop body is, and refuses what is none of MATLAB's classes."""

import ast

from jupyter_mgpu.errors import LoopBodyError
from jupyter_mgpu.loop_cell import header as headers
from jupyter_mgpu.loop_cell.findings import Read
from jupyter_mgpu.loop_cell.kernel_names import KernelNames
from jupyter_mgpu.loop_cell.records import (
    FIRST_BODY_LINE,
    Header,
    NameClass,
    Site,
    SiteForm,
    Slot,
    Text,
    Variable,
    key_of,
)
from jupyter_mgpu.loop_cell.walk import Walk

_ENGINE_NAMES = ("rank", "world_size", "device", "get_ipython")
_STORES = (SiteForm.STORE, SiteForm.ITEM)


class Decision:
    """Decides on each name, from all that happens to it."""

    def __init__(self, header: Header, walk: Walk, kernel: KernelNames, text: Text) -> None:
        self._header, self._walk, self._kernel, self._text = header, walk, kernel, text
        self._reads = walk.findings.reads
        self._sites: dict[str, list[Site]] = {}
        for site in walk.findings.sites:
            self._sites.setdefault(site.name, []).append(site)
        self._check_header()
        self._slots = {name: slot for name in self._reads if (slot := self._slot(name))}
        for name in self._sites:
            self._check_changed(name)
            self._check_other_names(name)
        for site in walk.findings.sites:
            self._check_replay(site)

    def slots(self) -> tuple[Slot, ...]:
        """Return the elements that travel with the items."""
        return tuple(self._slots.values())

    def variables(self) -> tuple[Variable, ...]:
        """Return all names, in the order of their classes."""
        found = [self._variable(name, NameClass.LOOP) for name in self._header.names]
        found += [self._variable(name, NameClass.TEMPORARY) for name in self._walk.temporaries]
        for name in {**self._reads, **self._sites}:
            kind = self._outer_kind(name)
            if kind is not NameClass.BROADCAST or not self._kernel.is_builtin(name):
                found.append(self._variable(name, kind))
        order = list(NameClass)
        return tuple(sorted(found, key=lambda each: (order.index(each.kind), each.lines)))

    def _outer_kind(self, name: str) -> NameClass:
        sites, is_read = self._sites.get(name, []), name in self._slots
        if not sites:
            return NameClass.SLICED_INPUT if is_read else NameClass.BROADCAST
        if is_read:
            return NameClass.SLICED
        if all(site.form is SiteForm.STORE for site in sites):
            return NameClass.SLICED_OUTPUT
        return NameClass.REDUCTION

    # What is refused

    def _check_header(self) -> None:
        changed = set(self._sites) | self._walk.temporaries
        for name in sorted(headers.iterated_names(self._header) & changed):
            if not self._is_written_where_it_was_read(name):
                raise self._refusal(name, f"but the loop reads `{name}` while it runs")
        for name in sorted(headers.read_names(self._header.iterable) & self._rebound()):
            raise self._refusal(name, f"but the loop over {self._shown()} reads `{name}`")

    def _rebound(self) -> frozenset[str]:
        return self._walk.temporaries | self._walk.reductions

    def _is_written_where_it_was_read(self, name: str) -> bool:
        """Tell whether `for i, x in enumerate(xs)` writes `xs[i]` only, after it was read."""
        if headers.enumerated_name(self._header) != name or name in self._rebound():
            return False
        variable = headers.distinct_variable(self._header)
        indexes = [self._walk.findings.store_indexes.get(site.key) for site in self._sites[name]]
        return all(
            each is not None and isinstance(each.index, ast.Name) and each.variable == variable
            for each in indexes
        )

    def _refusal(self, name: str, reason: str) -> LoopBodyError:
        return self._text.error(
            self._line(name),
            f"`{name}` is changed in the body, {reason}. "
            "Use another name, or a plain loop if iterations depend on it.",
        )

    def _check_changed(self, name: str) -> None:
        """Refuse a name that iterations change and read, unless each has its own element."""
        first = self._sites[name][0]
        if self._kernel.has(name) is False and name not in _ENGINE_NAMES:
            raise self._text.error(
                first.line,
                f"`{name}` is changed in the body, but the kernel has no `{name}`. "
                f"Create it in a cell before, such as {_start_value(first)}.",
            )
        if name in self._slots or name not in self._reads:
            return
        read = self._reads[name][0]
        shown = ast.unparse(read.node)
        if name in self._walk.reductions or first.form not in _STORES:
            raise self._text.error(
                read.node,
                f"`{name}` collects the results of all iterations (line {first.line}), but is "
                f"read on line {read.node.lineno}, where its value depends on which iterations "
                "have run. Read it after the loop, or collect under another name.",
            )
        raise self._text.error(
            read.node,
            f"`{shown}` is read on line {read.node.lineno} while other iterations write "
            f"`{name}` (line {first.line}): iterations depend on each other. Write to another "
            f"name, or read and write the same `{name}[i]` only, with i of range() or "
            f"enumerate(). What does not change, such as len({name}), read before the loop.",
        )

    def _check_other_names(self, name: str) -> None:
        """Refuse to change what the body reads by another name, as after `new = old`."""
        if all(site.form is SiteForm.REBINDING for site in self._sites[name]):
            return
        for other in {**self._reads, **dict.fromkeys(headers.iterated_names(self._header))}:
            if other != name and self._kernel.are_one(name, other):
                raise self._text.error(
                    self._line(name),
                    f"`{name}` is changed in the body, but it is the same object as `{other}`, or "
                    f"shares its memory, and the loop reads `{other}`. Use one name for it, or "
                    f"make a copy in a cell before, such as {name} = copy.copy({other}).",
                )

    def _check_replay(self, site: Site) -> None:
        """Refuse a fold whose function the kernel cannot call."""
        if site.form is not SiteForm.REBINDING or not isinstance(site.statement, ast.Assign):
            return
        own = self._walk.temporaries | frozenset(self._header.names)
        for name in headers.read_names(site.statement.value) & own:
            raise self._text.error(
                site.statement,
                f"`{site.name}` is folded in the kernel, after the iteration, by `{name}`, which "
                f"the iteration assigns. Define `{name}` in a cell before, or write "
                f"{site.name} = f({site.name}, e) with one argument e that holds all it needs.",
            )

    # Slices

    def _slot(self, name: str) -> Slot | None:
        reads, sites = self._reads[name], self._sites.get(name, [])
        if not reads[0].variable or len({_index_text(read) for read in reads}) != 1:
            return None
        if sites and not self._is_own_element(reads[0], sites):
            return None
        if not sites and not self._kernel.holds_its_elements(name):
            return None
        index, variable = reads[0].index, reads[0].variable
        if index is None or self._depends_on_changes(index):
            return None
        position = headers.slice_variables(self._header)[variable]
        keys = frozenset(key_of(read.node) for read in reads)
        return Slot(name, index, variable, position, keys, is_written=bool(sites))

    def _is_own_element(self, read: Read, sites: list[Site]) -> bool:
        """Tell whether iterations write the element that they read, and no other reads."""
        indexes = [self._walk.findings.store_indexes.get(site.key) for site in sites]
        same = all(each is not None and _index_text(each) == _index_text(read) for each in indexes)
        return same and read.variable == headers.distinct_variable(self._header)

    def _depends_on_changes(self, index: ast.expr) -> bool:
        names = headers.read_names(index) - set(self._header.names)
        return bool(names & (set(self._sites) | self._walk.temporaries))

    # What is told

    def _variable(self, name: str, kind: NameClass) -> Variable:
        lines = set(self._walk.findings.lines.get(name, ()))
        if name in headers.read_names(self._header.iterable) or kind is NameClass.LOOP:
            lines.add(1)
        notes = [self._reason(name, kind), *self._walk.findings.notes.get(name, ())]
        notes += self._kernel_notes(name, kind)
        return Variable(name, kind, tuple(sorted(lines)), "; ".join(filter(None, notes)))

    def _reason(self, name: str, kind: NameClass) -> str:
        sites, slot = self._sites.get(name, []), self._slots.get(name)
        if kind is NameClass.LOOP and name in self._walk.rebound:
            return "assigned again in the body"
        if slot is not None:
            element = f"{name}[{ast.unparse(slot.index)}]"
            is_written = " and comes back" if slot.is_written else ""
            return f"{element} travels with each item{is_written}"
        if kind is NameClass.SLICED_OUTPUT:
            shown = {ast.unparse(self._target(site)): None for site in sites}
            return f"written in loop order: {', '.join(shown)}"
        if kind is NameClass.REDUCTION:
            return self._reduction_reason(sites)
        return ""

    def _target(self, site: Site) -> ast.expr:
        read = self._walk.findings.store_indexes.get(site.key)
        if read is not None:
            return read.node
        return ast.Subscript(ast.Name(site.name), ast.Constant(...))

    def _reduction_reason(self, sites: list[Site]) -> str:
        operations = list(dict.fromkeys(site.operation for site in sites))
        text = f"{', '.join(operations)} in loop order"
        called = [site.operation for site in sites if isinstance(_folded(site), ast.Call)]
        if called:
            text += f"; {called[0]} runs in the kernel"
        if any(operation in ("and", "or") for operation in operations):
            text += "; the other side is evaluated in every iteration"
        return text

    def _kernel_notes(self, name: str, kind: NameClass) -> list[str]:
        if kind is NameClass.TEMPORARY and self._kernel.has(name):
            return [f"the kernel's {name} is neither seen nor changed"]
        if kind is NameClass.BROADCAST and name in _ENGINE_NAMES:
            return ["the engine's own"]
        if kind is NameClass.BROADCAST and self._kernel.has(name) is False:
            return ["not defined in the kernel"]
        return []

    def _line(self, name: str) -> int:
        if name in self._sites:
            return self._sites[name][0].line
        return min(self._walk.findings.lines.get(name, {FIRST_BODY_LINE}))

    def _shown(self) -> str:
        return ast.unparse(self._header.iterable)


def _index_text(read: Read) -> str:
    return "" if read.index is None else ast.dump(read.index)


def _folded(site: Site) -> ast.expr | None:
    is_fold = site.form is SiteForm.REBINDING and isinstance(site.statement, ast.Assign)
    return site.statement.value if is_fold and isinstance(site.statement, ast.Assign) else None


def _start_value(site: Site) -> str:
    if site.form is SiteForm.METHOD:
        return f"{site.name} = []"
    if site.form is SiteForm.STORE:
        return f"{site.name} = [None] * n or {site.name} = {{}}"
    return f"{site.name} = 0"
