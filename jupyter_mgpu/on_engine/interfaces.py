"""Which network interface leads to an address. Standard library only."""

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, MutableMapping

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SETTINGS = ("NCCL_", "GLOO_", "UCX_")
_SIOCGIFADDR = 0x8915


def own_address_towards(address: str) -> str | None:
    """Return this host's own address on the way to another; None if there is no way.

    The routing table is asked by connecting a socket for datagrams, which sends nothing.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(address: str) -> str | None:
    """Name the interface whose own address this host uses towards another; None if unknown.

    Source:
        netdevice(7), SIOCGIFADDR.
    """
    own = own_address_towards(address)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            names = [name for _, name in socket.if_nameindex()]
            return next((name for name in names if _address_of(probe, name) == own), None)
    except OSError:
        return None


def _address_of(any_socket: socket.socket, name: str) -> str | None:
    try:
        answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:  # it has none
        return None
    return socket.inet_ntoa(answer[20:24])


def settings_for_others(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the user has set for collectives, for other hosts.

    Interfaces have other names there.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_SETTINGS) and name not in VARIABLES
    }


def choose_interfaces(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have gloo and NCCL use the interface that leads to MASTER_ADDR, if nobody has chosen one.

    MGPU_ADDRESS, this host's own address among the pool's, wins over that.

    They would look up the host's name, which may lead nowhere or to another network.
    """
    master = environment.get("MASTER_ADDR", "127.0.0.1")
    name = interface_towards(environment.get("MGPU_ADDRESS") or master)
    if name is not None:
        for variable in VARIABLES:
            environment.setdefault(variable, name)
