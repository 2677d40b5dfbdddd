"""Follows the changes in a loop body: which the kernel replays, and which would be lost."""

# ruff: noqa: D102, N802 - the methods are named after the nodes that they visit

import ast
from typing import NoReturn

from jupyter_mgpu.loop_cell import header as headers
from jupyter_mgpu.loop_cell import patterns
from jupyter_mgpu.loop_cell.name_walk import NameWalk
from jupyter_mgpu.loop_cell.records import Site
from jupyter_mgpu.loop_cell.scopes import root_name


class ChangeWalk(NameWalk):
    """Follows assignments and method calls."""

    def _change(self, node: ast.Attribute | ast.Subscript, what: str) -> None:
        """Refuse a change inside something that is not the iteration's own."""
        root = root_name(node)
        if root is None or self._is_inner(root.id):
            return
        shown = ast.unparse(node)
        if self._is_outer(root.id):
            self._refuse(
                node,
                f"`{shown}` is {what}, but the engine has a copy of `{root.id}`: the change would "
                f"be lost. Collect it as results[i] = ... or results.append(...), and change "
                f"`{root.id}` after the loop.",
            )
        source = self._aliases.get(root.id)
        if source is not None:
            self._refuse(
                node,
                f"`{shown}` is {what}, but `{root.id}` is a part of `{source}`, of which the "
                "engine has a copy: the change would be lost. Change a copy under a new name, "
                f"as in mine = copy.copy({root.id}), and collect it as results[i] = mine.",
            )

    def _store(self, target: ast.Attribute | ast.Subscript, *, can_record: bool) -> None:
        """Handle a target `a[i]` or `a.b` of an assignment."""
        name = self._outer_root(target)
        if name is None or not isinstance(target, ast.Subscript):
            self._change(target, "assigned")
            self.generic_visit(target)
            return
        self._check_records(target, name, can_record=can_record)
        site = patterns.store_site(target, name, self._prefix)
        self._check_index(target, site)
        if isinstance(target.value, ast.Name):
            self.findings.store_indexes[site.key] = self._sliced(target, name)
        self._add(site)

    def _check_records(self, node: ast.expr, name: str, *, can_record: bool = True) -> None:
        if self._inner or not can_record:
            self._refuse(
                node,
                f"`{ast.unparse(node)}` changes `{name}` of the kernel, which is possible in an "
                "assignment of the loop's body only. Assign it there.",
            )

    def _check_index(self, target: ast.Subscript, site: Site) -> None:
        names = {name for operand in site.operands for name in headers.read_names(operand)}
        own = {name for name in names if not self._is_outer(name)}
        has_call = any(
            isinstance(node, ast.Call) for operand in site.operands for node in ast.walk(operand)
        )
        if not own and not has_call:
            variable = next(iter(sorted(self.loop)), "i")
            self._refuse(
                target,
                f"`{ast.unparse(target)}` is the same place in every iteration, so that the "
                f"iterations overwrite each other. Write one place per iteration, as in "
                f"{site.name}[{variable}] = ..., or a reduction such as x += e.",
            )

    def _add(self, site: Site) -> None:
        if self._num_tries and patterns.reads_an_element(site):
            self._refuse(
                site.statement,
                f"This changes an element of `{site.name}` within try, but whether the element "
                "exists is known in the kernel only, after the iteration. Use a defaultdict or "
                f"{site.name}.setdefault(k, []).append(e), outside of try.",
            )
        self.findings.saw(site.name, site.statement)
        self.run(site.operands)
        self.findings.sites.append(site)

    def visit_Assign(self, node: ast.Assign) -> None:
        match node.targets:
            case [ast.Name(id=name)] if name in self.reductions and not self._inner:
                self._add(patterns.fold_site(node, name, self._prefix))
                return
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, self._alias_of(node.value))

    def _assign(self, target: ast.expr, alias: str | None, *, can_record: bool = True) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, target, alias)
        elif isinstance(target, ast.Tuple | ast.List):
            self._check_tuple(target)
            for element in target.elts:
                self._assign(element, alias, can_record=can_record)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None, can_record=can_record)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self._store(target, can_record=can_record)

    def _check_tuple(self, target: ast.Tuple | ast.List) -> None:
        """Refuse `i, a[i] = ...`: the index is assigned by the same statement."""
        stored = set(headers.stored_names(target))
        for node in ast.walk(target):
            name = self._outer_root(node) if isinstance(node, ast.Subscript) else None
            if name and isinstance(node, ast.Subscript) and stored & headers.read_names(node.slice):
                self._refuse(
                    node,
                    f"The index of `{ast.unparse(node)}` is assigned by the same statement. "
                    "Use two statements.",
                )

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Name):
            if target.id in self.reductions and not self._inner:
                self._add(patterns.fold_site(node, target.id, self._prefix))
                return
            self._load(ast.copy_location(ast.Name(target.id, ast.Load()), target))
            self.visit(node.value)
            if target.id in self._aliases:
                text = f"if it is an array, {ast.unparse(node)!r} changes the engine's copy only"
                self.findings.note(target.id, text)
            self._bind(target.id, target, self._aliases.get(target.id))
            return
        name = self._outer_root(target)
        if name is None or not isinstance(target, ast.Subscript):
            self._change(target, "changed")
            self.generic_visit(node)
            return
        self._check_records(target, name)
        site = patterns.item_site(node, name, self._prefix)
        if isinstance(target.value, ast.Name):
            self.findings.store_indexes[site.key] = self._sliced(target, name)
        self._add(site)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(
                    part.ctx, ast.Del
                ):
                    self._change(part, "deleted")
            self.visit(target)

    def visit_Expr(self, node: ast.Expr) -> None:
        root = patterns.folding_receiver(node)
        name = root.id if root is not None and self._is_outer(root.id) else None
        if name is not None and not self._inner and not self._kernel.is_module(name):
            self._add(patterns.method_site(node, name, self._prefix))
            return
        self._note_method(node.value)
        self.visit(node.value)

    def _note_method(self, call: ast.expr) -> None:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return
        root = root_name(call.func.value)
        if root is None or self._is_inner(root.id) or self._kernel.is_module(root.id):
            return
        if self._is_outer(root.id) or root.id in self._aliases:
            text = f"what .{call.func.attr}() changes stays on the engine"
            self.findings.note(root.id, text)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=method):
                if self._is_outer(name) and self._kernel.is_changed_by(name, method):
                    self._refuse_method(node, name, method)
        self.generic_visit(node)

    def _refuse_method(self, node: ast.AST, name: str, method: str) -> NoReturn:
        self._refuse(
            node,
            f"`{name}.{method}()` changes `{name}` of the kernel, of which the engine has a copy: "
            f"the change would be lost. Change a copy under a new name, or collect values by a "
            f"statement of the loop's body such as {name}.append(e).",
        )
