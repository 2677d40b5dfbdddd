"""What goes to the engines before a cell or task: names, and changes of the kernel's surroundings.

The path of a cell's names::

    analyse(cell) -> names read -> Sender.plan: who bound each last, what changed inside
       -> Plan.frames per rank -> EngineNamespace.receive -> the cell runs -> Sender.cell_ran
"""

from jupyter_mgpu.sending.follow import Follow
from jupyter_mgpu.sending.plan import Plan
from jupyter_mgpu.sending.sender import Sender

__all__ = ["Follow", "Plan", "Sender"]
