"""The pool's store: `python -m jupyter_mgpu.on_engine.store ADDRESS PORT FD`.

Takes over a listening socket, serves torch's TCPStore on it, and ends with its owner.
"""

import sys
import threading

from jupyter_mgpu.on_engine import guard


def serve(address: str, port: int, fd: int) -> None:
    """Serve the store until the owner ends."""
    guard.exit_with_owner()
    from torch.distributed import TCPStore

    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    threading.Event().wait()
    del store  # held until here: it serves as long as it exists


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
