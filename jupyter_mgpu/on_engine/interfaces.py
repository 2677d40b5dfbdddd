"""Which network interface leads to an address. Standard library only."""

import os
import socket
from collections.abc import Mapping, MutableMapping

from jupyter_mgpu.clusters.probe import own_addresses

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
CHOSEN_VARIABLE = "MGPU_INTERFACES"
"""Those of them that nobody has set but this module."""
_ANY_PORT = 9
_SETTINGS = ("NCCL_", "GLOO_", "UCX_")


def own_address_towards(address: str) -> str | None:
    """Return this host's own address on the way to another; None if there is no way.

    The routing table is asked by connecting a socket for datagrams, which sends nothing.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(address: str) -> str | None:
    """Name the interface whose own address this host uses towards another; None if unknown."""
    own = own_address_towards(address)
    return next((name for name, found in own_addresses() if found == own), None)


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

    MGPU_ADDRESS, this host's own address among the pool's, wins over that. Between hosts it is
    tried before ranks meet; see `collectives.meeting`.

    They would look up the host's name, which may lead nowhere or to another network.
    """
    master = environment.get("MASTER_ADDR", "127.0.0.1")
    name = interface_towards(environment.get("MGPU_ADDRESS") or master)
    free = [variable for variable in VARIABLES if variable not in environment]
    environment[CHOSEN_VARIABLE] = ",".join(free)
    if name is not None:
        environment.update(dict.fromkeys(free, name))
