"""`%gpus`: the devices of this machine with who uses them."""

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class

from jupyter_mgpu.gpus import GpuTable, gpu_table


@magics_class
class GpusMagic(Magics):
    """Parses the line, calls the library, shows the outcome. Nothing else."""

    @line_magic
    def gpus(self, line: str) -> GpuTable:
        """List the GPUs with memory, load and who uses them: `%gpus`."""
        if line.strip():
            raise UsageError(f"%gpus takes no arguments, but got {line.strip()!r}.")
        return gpu_table()
