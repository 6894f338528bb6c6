"""The command of the control socket that changes roles of workers."""

from dynamod.control.arguments import ChangeArguments, Whole
from dynamod.extension.command import Command
from dynamod.message.discovery import DisaggregationMode
from dynamod.message.rows import Row


class SwitchArguments(ChangeArguments, frozen=True, kw_only=True):
    """`role`: what the workers are for from now on. `expected_epoch`: only if the role has changed as often.

    `force`: also when a model loses its last worker.
    """

    role: DisaggregationMode
    expected_epoch: Whole | None = None
    force: bool = False


SWITCH = Command("switch", SwitchArguments, list[Row], "Have workers change their role while they run.", changes=True)
