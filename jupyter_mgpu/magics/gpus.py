"""`%gpus`: the devices of this machine with who uses them."""

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class

from jupyter_mgpu.gpus import GpuTable
from jupyter_mgpu.snapshots import gpu_table
from jupyter_mgpu.widgets.live import show_gpus

LIVE = "--live"


@magics_class
class GpusMagic(Magics):
    """Parses the line, calls the library, shows the outcome. Nothing else."""

    @line_magic
    def gpus(self, line: str) -> GpuTable | None:
        """List the GPUs with memory, load and who uses them: `%gpus`; live: `%gpus --live`."""
        words = line.split()
        if words == [LIVE]:
            show_gpus()
            return None
        if words:
            raise UsageError(f"%gpus takes {LIVE} or nothing, but got {line.strip()!r}.")
        return gpu_table()
