"""`Constant`: a value that each engine gets once.

Constant -> exchange.published, in the kernel -> the first `.value` on an engine fetches it
"""

from jupyter_mgpu.constants.constant import Constant

__all__ = ["Constant"]
