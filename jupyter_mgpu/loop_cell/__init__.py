"""The cell magic `%%parfor`: a cell is a loop's body, and its names are classified before it runs.

    header ---------------> parse_header -> Header
    cell -> classify:       refusals    what no iteration can do
                            walk        what happens to each name, in the order in which it runs
                            decision    what each name is: loop, sliced, broadcast, reduction, ...
            Classification
    engines: iteration_function  runs the body; what it would change in the kernel it records
    kernel:  loop_items          each item, with the elements `a[i]` that the body reads
             Collector           replays the records in loop order: the plain loop's result

A change of a kernel's name (`out[i] = e`, `total += e`, `xs.append(e)`) is a *site*. The engine
evaluates its operands; the kernel runs the statement itself on them. So the result is that of the
plain loop, bit by bit, for any number of engines, and a fold need not be associative. In return no
iteration may read what iterations change, but its own element `a[i]`.

Nothing here runs engines or does I/O.
"""

from jupyter_mgpu.loop_cell.classify import classify
from jupyter_mgpu.loop_cell.collector import Collector
from jupyter_mgpu.loop_cell.explain import explain
from jupyter_mgpu.loop_cell.generate import iteration_function
from jupyter_mgpu.loop_cell.header import parse_header
from jupyter_mgpu.loop_cell.items import LoopItems, check_iterable, loop_items
from jupyter_mgpu.loop_cell.records import Classification, Header, NameClass, Variable

__all__ = [
    "Classification",
    "Collector",
    "Header",
    "LoopItems",
    "NameClass",
    "Variable",
    "check_iterable",
    "classify",
    "explain",
    "iteration_function",
    "loop_items",
    "parse_header",
]
