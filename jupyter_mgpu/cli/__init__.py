"""The command line: `jupyter mgpu gpus`, `pools`, `tasks`, `stop`, `doctor`, `cluster`.

It finds pools by their records, as the sidebar does, and needs no server.
"""

from jupyter_mgpu.cli.command import main

__all__ = ["main"]
