"""A link between two network namespaces that takes its time: `delayed_link.py A B DEVICE SECONDS`.

It stands in for `tc netem`, which many kernels lack: packets of a TUN device in one namespace come
out of one in the other, so many seconds later.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 1, 0x1000
_CLONE_NEWNET = 0x40000000
MOST_BYTES = 65536


def open_device(namespace: str, name: str) -> int:
    """Make a TUN device in a namespace; it goes when its descriptor is closed."""
    with Path(f"/run/netns/{namespace}").open() as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns", namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


def carry(devices: tuple[int, int], delay_s: float) -> None:
    """Carry packets both ways, for ever."""
    other = dict(zip(devices, reversed(devices), strict=True))
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else None
        ready, _, _ = select.select(devices, [], [], timeout_s)
        due_s = time.perf_counter() + delay_s
        for device in ready:
            waiting.append((due_s, other[device], os.read(device, MOST_BYTES)))
        while waiting and waiting[0][0] <= time.perf_counter():
            _, device, packet = waiting.popleft()
            with contextlib.suppress(OSError):  # that end is not up yet
                os.write(device, packet)


if __name__ == "__main__":
    here, there, device, seconds = sys.argv[1:]
    ends = open_device(here, device), open_device(there, device)
    print("ready", flush=True)
    carry(ends, float(seconds))
