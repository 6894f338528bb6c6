"""Where the probes of a daemon listen, from DYNAMOD_PROBES."""

import ipaddress
from collections.abc import Mapping

from dynamod.message.errors import UserError

VARIABLE = "DYNAMOD_PROBES"


def place(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Address and port to listen at; None: there are no probes. Raises UserError."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        port = ""
    if not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{VARIABLE} is {text!r}", "write an address and a port, like 0.0.0.0:9090 or [::]:9090")
    return host.strip("[]"), int(port)
