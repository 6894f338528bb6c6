"""Where the metrics of a node are served: variables of the daemon."""

from collections.abc import Mapping
from typing import NamedTuple

from dynamod.message.errors import UserError

PORT = "DYN_SYSTEM_PORT"
HOST = "DYN_SYSTEM_HOST"
LOCAL = "127.0.0.1"
OFF = -1
LAST_PORT = 65535


class ExporterSettings(NamedTuple):
    """`port`: 0 for a free one, OFF for none."""

    host: str = LOCAL
    port: int = OFF


def settings(environ: Mapping[str, str]) -> ExporterSettings:
    """Read the variables, which have the names and the meaning of NVIDIA Dynamo. Raises UserError."""
    text = environ.get(PORT) or str(OFF)
    try:
        port = int(text)
    except ValueError:
        port = OFF - 1
    if not OFF <= port <= LAST_PORT:
        raise UserError(f"{PORT}={text} is no port", f"0 for a free port, 1 to {LAST_PORT}, or {OFF} for none")
    return ExporterSettings(environ.get(HOST) or LOCAL, port)
