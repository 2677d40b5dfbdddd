"""Turn objects into frames and back: pickle 5, large buffers apart, notebook code by value.

The path of an object::

    pack(obj) -> [stream, buffer, buffer, ...]      (any transport)      unpack(frames) -> obj
       pickler    what each object becomes: functions, classes, codes, tensors, exceptions
       faults     where in the object the part is that cannot be packed

Both ends are this package. It imports torch only where an object needs it.
"""

from jupyter_mgpu.packing import companions
from jupyter_mgpu.packing.frames import Frame, Place, count_bytes, pack, unpack
from jupyter_mgpu.packing.plain import NotPlainError, unpack_plain
from jupyter_mgpu.packing.raised import pack_exception
from jupyter_mgpu.packing.tensors import set_device

__all__ = [
    "Frame",
    "NotPlainError",
    "Place",
    "companions",
    "count_bytes",
    "pack",
    "pack_exception",
    "set_device",
    "unpack",
    "unpack_plain",
]
