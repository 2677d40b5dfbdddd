"""The command line: `jupyter mgpu gpus`, `pools`, `tasks`, `stop`, `doctor`.

It finds pools by their records, as the sidebar does, and needs no server.
"""

from jupyter_mgpu.cli.command import main

__all__ = ["main"]
