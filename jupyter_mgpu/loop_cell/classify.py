"""Says of every name of a `%%parfor` cell what it is to the loop, before anything runs."""

import ast
import re
from collections.abc import Callable, Mapping

from jupyter_mgpu.cell_text import below_magic
from jupyter_mgpu.loop_cell import header as headers
from jupyter_mgpu.loop_cell.decision import Decision
from jupyter_mgpu.loop_cell.kernel_names import KernelNames
from jupyter_mgpu.loop_cell.records import Classification, Header, Text
from jupyter_mgpu.loop_cell.refusals import refuse_what_cannot_run
from jupyter_mgpu.loop_cell.walk import Walk


def classify(
    header: Header | str,
    body_source: str,
    *,
    namespace: Mapping[str, object] | None = None,
    transform: Callable[[str], str] | None = None,
    filename: str = "<parfor>",
) -> Classification:
    """Classify the names of a loop whose body is a cell.

    Args:
        header: What stands behind `%%parfor`, without options.
        body_source: The cell without its magic line.
        namespace: The kernel's names: which there are and of what type, never their values.
            None: nothing is assumed of them.
        transform: Turns magics and shell lines into Python, as IPython's `transform_cell`.
        filename: What errors and tracebacks call the cell.

    Raises:
        LoopBodyError: If the iterations are not independent, or may not be; with the line.
        SyntaxError: If the cell is no Python.
    """
    if isinstance(header, str):
        header = headers.parse_header(header, filename)
    source = below_magic(body_source, transform)
    text = Text([f"%%parfor {header.text}", *source.split("\n")[1:]], filename)
    body = _parse(source, text)
    identifiers = frozenset(re.findall(r"\w+", source)) | set(re.findall(r"\w+", header.text))
    kernel = KernelNames(namespace)
    walk = Walk(header, body, kernel, text, identifiers)
    walk.run(body)
    decision = Decision(header, walk, kernel, text)
    variables, slots = decision.variables(), decision.slots()
    sites = tuple(walk.findings.sites)
    return Classification(header, tuple(body), variables, sites, slots, identifiers, filename)


def _parse(source: str, text: Text) -> list[ast.stmt]:
    tree = ast.parse(source, text.filename)
    if not tree.body:
        raise text.error(
            1, "The cell has no loop body. Write below %%parfor what each iteration does."
        )
    refuse_what_cannot_run(tree.body, text)
    # What only a whole loop shows: `continue` and the like in their right places.
    loop = ast.For(ast.Name("_", ast.Store()), ast.Tuple([], ast.Load()), tree.body, [])
    ast.copy_location(loop, tree.body[0])
    ast.fix_missing_locations(loop)
    compile(ast.Module([loop], []), text.filename, "exec", dont_inherit=True)
    return [_WithoutAnnotations().visit(statement) for statement in tree.body]


class _WithoutAnnotations(ast.NodeTransformer):
    """Drops annotations, which would make a name local to a function where none is assigned."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """Make a plain assignment, or nothing."""
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_FunctionDef(self, node: ast.stmt) -> ast.stmt:
        """Leave a scope of its own as it is."""
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815 - the nodes' names
