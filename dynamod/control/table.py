"""The commands of the core. `reading.py` and `changing.py` answer them in the daemon."""

from dynamod.extension.command import Command, NoArguments
from dynamod.message.rows import Row

from .answers import Drained, GraphStatus, JsonObject, LogLines, Reloaded, Status, Stopped
from .arguments import (
    DrainArguments,
    ExplainArguments,
    InspectArguments,
    LogsArguments,
    ReloadArguments,
    RestartArguments,
    ScaleArguments,
    ServeArguments,
    StopArguments,
)

STATUS = Command("status", NoArguments, Status, "The daemon, its graphs, and its problems.")
PS = Command("ps", NoArguments, list[Row], "One row per component and replica, with the models that can be asked.")
LOGS = Command("logs", LogsArguments, LogLines, "Log lines; with `follow=1` a stream of text.")
INSPECT = Command(
    "inspect",
    InspectArguments,
    list[JsonObject],
    "Actors of the daemon and of its processes: mailboxes, messages, stacks of tasks.",
    subject="actor",
)
METRICS = Command("metrics", NoArguments, str, "Statistics of all processes as Prometheus text.", path="metrics")
EXPLAIN = Command(
    "explain",
    ExplainArguments,
    list[JsonObject],
    "The routing decisions for a request.",
    subject="request",
    path="requests/{subject}/decision",
)

RESTART = Command("restart", RestartArguments, list[Row], "Replace the processes of a component.", changes=True)
SCALE = Command("scale", ScaleArguments, list[Row], "Run a component in so many processes.", changes=True)
DRAIN = Command(
    "drain",
    DrainArguments,
    Drained,
    "Take a component out of service: no new requests, open ones finish, then it ends.",
    changes=True,
)
STOP = Command("stop", StopArguments, Stopped, "End a graph, or the daemon.", changes=True, subject="graph")
SERVE = Command("serve", ServeArguments, GraphStatus, "Start a graph.", changes=True, seconds=30.0, own_node=True)
RELOAD = Command(
    "reload", ReloadArguments, Reloaded, "Change a running graph to new settings.", changes=True, own_node=True
)
