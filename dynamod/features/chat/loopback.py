"""The address at which a command reaches the frontend that it runs for itself."""

import socket

from dynamod.message.errors import UserError

ADDRESSES = ("127.0.0.1", "::1")
CONNECT_TIMEOUT_S = 2.0
"""Seconds for a connection inside the machine."""


def loopback() -> str:
    """The first loopback address that takes connections. Raises UserError where there is none.

    Binding is not enough: 127.0.0.1 can be bound while the loopback interface is down.
    """
    for host in ADDRESSES:
        if _connects(host):
            return host
    raise UserError(
        f"this machine has no loopback address: neither {' nor '.join(ADDRESSES)} takes connections",
        "bring the loopback interface up (`ip link set lo up`), or serve with in=http",
    )


def _connects(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as listener, socket.socket(family) as client:
            listener.bind((host, 0))
            listener.listen(1)
            client.settimeout(CONNECT_TIMEOUT_S)
            client.connect(listener.getsockname())
    except OSError:
        return False
    return True
