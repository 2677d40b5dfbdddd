"""What `%load_ext jupyter_mgpu` registers."""

from typing import Any


def register(shell: Any) -> None:
    """Register the magics and formatters with an IPython shell.

    Raises:
        UsageError: If a package of this kernel is too old.
    """
    from jupyter_mgpu.magics import floors

    floors.check()
    from jupyter_mgpu.errors import MgpuError
    from jupyter_mgpu.joblib_backend import register_joblib
    from jupyter_mgpu.magics.gpus import GpusMagic
    from jupyter_mgpu.magics.parfor import ParforMagic
    from jupyter_mgpu.magics.parpool import ParpoolMagic
    from jupyter_mgpu.magics.spmd import SpmdMagic
    from jupyter_mgpu.magics.tasks import TasksMagic
    from jupyter_mgpu.output import failures, refusals
    from jupyter_mgpu.widgets import register as register_views

    shell.register_magics(GpusMagic, ParforMagic, ParpoolMagic, SpmdMagic, TasksMagic)
    register_joblib()
    failures.draw_short(MgpuError)
    failures.draw_syntax_errors(shell)
    refusals.draw_refusals(shell)
    register_views(shell)
