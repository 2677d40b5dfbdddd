"""Loops over the engines of a pool.

parfor -> Items (read lazily, each packed for itself) -> Loop -> chunks -> the pool's queue
engines -> parts of chunks -> Loop -> results in loop order
"""

from jupyter_mgpu.loops.parfor import parfor, run_loop

__all__ = ["parfor", "run_loop"]
