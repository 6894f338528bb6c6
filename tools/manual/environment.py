"""The page about environment variables, by the processes that read them."""

from dynamod.runtime.liveness import SETTINGS

from .text import code, page, table
from .variables import CLOCKS, GROUPS, Group, clock_default

INTRO = """\
Three kinds of processes read variables:

- A command reads its own environment.
- Component processes inherit the environment, the folder and the interpreter of the command that started their graph.
  Component processes of a graph that was handed over (`--detach`) inherit the environment of the daemon.
- The daemon has the environment of the command that started the daemon, or of its systemd unit. Variables of later
  commands have no effect on a running daemon."""

TIMES = """\
### Clocks of processes

All values are seconds. A component's keys `heartbeat_timeout`, `stall_timeout`, `compute_timeout`, `slow_timeout` and
`kill_timeout` win over the variables. A Python file's own `DYNAMOD_HEARTBEAT_TIMEOUT` counts for the file."""


def environment() -> str:
    """The page."""
    first, *others = GROUPS
    return page("Environment variables", INTRO, _group(first), _clocks(), *map(_group, others))


def _group(group: Group) -> str:
    clocks = {_variable(key) for key in SETTINGS}
    rows = [(code(one.name), one.default, one.meaning) for one in group.variables if one.name not in clocks]
    return "\n\n".join(filter(None, [f"## {group.title}", group.intro, table(_HEAD, rows)]))


def _clocks() -> str:
    rows = [(code(_variable(key)), clock_default(key), text) for key, text in CLOCKS.items()]
    return f"{TIMES}\n\n{table(_HEAD, rows)}"


def _variable(key: str) -> str:
    return f"DYNAMOD_{key.upper()}"


_HEAD = ("variable", "default", "meaning")
