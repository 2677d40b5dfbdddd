"""Large buffers between processes of one host, written once and mapped by each reader.

The path of a buffer::

    Store.place   buffers -> views of a block, which stand in for them among a message's frames
    Lender.lend   a message -> the message without those frames, with a description of the blocks
    borrow        the description -> memory that the reader may write, copied only where it does
    Lender.answered, Lender.forget   the reader has it, or has died: the sender lets go of it
    Holder        where the reader is on another host: a copy of a block there, for all its readers

A block is a sealed memfd, or a file where memfds cannot be opened by others. It lives as long as
a view or a mapping of it. A buffer that nothing else refers to needs none: its reader copies it.
"""

from jupyter_mgpu.shared_memory.block import Block
from jupyter_mgpu.shared_memory.holder import Holder
from jupyter_mgpu.shared_memory.lending import ANSWERS, Borrowed, Lender, borrow, is_copied
from jupyter_mgpu.shared_memory.lent_memory import is_alone, is_lent, is_only_reference
from jupyter_mgpu.shared_memory.mapping import block_of, is_shared, map_anonymous, memory_of
from jupyter_mgpu.shared_memory.store import Store

__all__ = [
    "ANSWERS",
    "Block",
    "Borrowed",
    "Holder",
    "Lender",
    "Store",
    "block_of",
    "borrow",
    "is_alone",
    "is_copied",
    "is_lent",
    "is_only_reference",
    "is_shared",
    "map_anonymous",
    "memory_of",
]
