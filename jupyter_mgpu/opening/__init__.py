"""Opens pools: chooses GPUs, plans the engines, starts them; makes an open pool another size."""

from jupyter_mgpu.opening.far_pool import open_far_pool
from jupyter_mgpu.opening.kept import attach_pool, kept_pool, open_kept_pool
from jupyter_mgpu.opening.new_pool import PoolOptions, open_pool
from jupyter_mgpu.opening.resizing import resize

__all__ = [
    "PoolOptions",
    "attach_pool",
    "kept_pool",
    "open_far_pool",
    "open_kept_pool",
    "open_pool",
    "resize",
]
