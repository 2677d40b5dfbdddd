"""Moves memory in several threads: one alone does not keep up with what memory can carry."""

import mmap
import threading
from collections.abc import Iterator, Sequence

from jupyter_mgpu import host

MOST_PARTS = 4
LEAST_PART_BYTES = 16 * 2**20
"""A thread is not worth it for less."""


def num_parts(num_bytes: int) -> int:
    """Count the parts that so many bytes are divided into, one for each thread."""
    wanted = min(MOST_PARTS, num_bytes // LEAST_PART_BYTES)
    return min(wanted, host.num_cores()) if wanted > 1 else 1  # most are small: asks for no cores


def divided(size: int, num_parts: int) -> list[int]:
    """Return where parts begin and the last one ends; mappings begin at whole pages."""
    page = mmap.PAGESIZE
    pages = -(-size // page)
    return [pages * i // num_parts * page for i in range(num_parts)] + [size]


def in_threads(works: Sequence[Iterator[None]]) -> None:
    """Exhaust iterators at the same time; the first one that fails ends all."""
    errors: list[BaseException] = []

    def exhaust(work: Iterator[None]) -> None:
        try:
            for _ in work:
                if errors:
                    return
        except BaseException as error:  # noqa: BLE001 - raised below, a Stop as well
            errors.append(error)

    threads = [threading.Thread(target=exhaust, args=(work,)) for work in works[1:]]
    try:
        for thread, work in zip(threads, works[1:], strict=True):
            try:
                thread.start()
            except RuntimeError:  # there are no more threads to be had
                exhaust(work)
        exhaust(works[0])
    except BaseException as error:  # noqa: BLE001 - raised below, once nobody writes any more
        errors.append(error)
    # However often Stop is pressed: who closes a descriptor must know that nobody writes to it.
    while any(thread.is_alive() for thread in threads):
        try:
            for thread in threads:
                if thread.is_alive():
                    thread.join()
        except KeyboardInterrupt as error:
            errors.append(error)
    if errors:
        raise errors[0]
