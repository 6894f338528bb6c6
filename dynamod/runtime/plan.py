"""What the daemon sends to a component process that it starts."""

from typing import Any

import msgspec

from dynamod.message.discovery import DisaggregationMode

EXIT_USER_ERROR = 78
"""Exit code of a process whose configuration cannot work: starting it again would not help."""


class ServicePlan(msgspec.Struct, frozen=True):
    """One service in a process. `component_kind`: its actor, as in `graph.ServiceSpec`; empty: `spec` is loaded.

    `spec`: `graph.ServiceSpec` as a dict. `sockets`: listening sockets by purpose, as places in the list of
    descriptors sent with the plan, and the memory that counts their clients (`SHARES`). `role`: of a worker, instead of
    its disaggregation mode.
    """

    name: str
    spec: dict[str, Any]
    component_kind: str = ""
    sockets: dict[str, int] = {}
    role: DisaggregationMode | None = None


class HostPlan(msgspec.Struct, frozen=True):
    """One process: `name` is unique on the node (`graph/Worker.0`), `index` its number among its replicas.

    `server`: path of the socket at which it takes requests. `grace`: seconds that open answers get to finish when it is
    stopped. `code`: folder of the snapshot that it imports from; empty: from the package as it is. `control`: path
    of the daemon's control socket.
    """

    graph: str
    name: str
    index: int
    services: tuple[ServicePlan, ...]
    server: str
    config: dict[str, Any] = {}
    env: dict[str, str] = {}
    grace: float = 2.0
    code: str = ""
    control: str = ""


HTTP = "http"
"""Purpose of the first socket on which clients are served; the others are called `http.1`, `http.2`, and so on."""

SHARES = "shares"
"""Purpose of the memory in which the processes that share these sockets count their clients, see `http.accepting`."""


def http_sockets(count: int, *, shares: bool = False) -> dict[str, int]:
    """`ServicePlan.sockets` of a service that serves clients on the first `count` descriptors of the plan.

    `shares`: the descriptor after them is the memory in which clients are counted.
    """
    return {f"{HTTP}.{place}" if place else HTTP: place for place in range(count)} | ({SHARES: count} if shares else {})


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(HostPlan).decode
