"""`DataQueue`: items between the notebook and the engines, and between engines.

put -> exchange.queues, in the kernel, holds the packed items -> get, or a callback of the kernel
"""

from jupyter_mgpu.data_queues.data_queue import DataQueue

__all__ = ["DataQueue"]
