"""The command of the control socket that `dynamo top` asks."""

from typing import Any

import msgspec

from dynamod.control.answers import Daemon
from dynamod.extension.command import Command, NoArguments
from dynamod.message.rows import Row
from dynamod.observe.vitals import Vitals


class Look(Daemon, frozen=True):
    """One look at a node. `at`: monotonic seconds. `rows`: of `ps`, without models. `instances`, `vitals`: by pid.

    `instances`: leases in hexadecimal. `statistics`: `runtime.statistics.ProcessStatistics` of each process that has
    answered, as JSON.
    """

    at: float = 0.0
    rows: list[Row] = msgspec.field(default_factory=list[Row])
    instances: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    vitals: dict[str, Vitals] = msgspec.field(default_factory=dict[str, Vitals])
    statistics: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


TOP = Command("top", NoArguments, Look, "All that one refresh of `dynamo top` needs.")
