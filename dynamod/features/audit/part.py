"""What sees each command of a daemon that changes something, from its control socket and from other nodes."""

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dynamod.control.refusals import Refusal, refusal_of
from dynamod.daemon.parts import DaemonPart
from dynamod.extension.command import CommandCall, Proceed

if TYPE_CHECKING:
    from .daemon import CommandFiles

LEFT = Refusal(499, "the client left")


class AuditedCommands(DaemonPart):
    """Writes commands to the audit folders of the graphs that run before or after the command."""

    @cached_property
    def files(self) -> "CommandFiles":
        """Where they are written. Most daemons write none, so the rest is imported with the first command."""
        from .daemon import CommandFiles

        return CommandFiles()

    async def command(self, call: CommandCall, proceed: Proceed) -> Any:
        """Answer a command, and write a line where the command may have changed something."""
        if not call.command.changes:
            return await proceed(call)
        from .daemon import audits

        before, began, outcome = audits(self.node), time.time(), LEFT
        try:
            answer = await proceed(call)
            outcome = Refusal(200)
            return answer
        except Exception as error:
            outcome = refusal_of(error)
            raise
        finally:
            self._write(call, began, outcome, before)

    def refused(self, call: CommandCall, status: int, message: str) -> None:
        """Write a line about the attempt."""
        self._write(call, time.time(), Refusal(status, message), {})

    def _write(self, call: CommandCall, began: float, outcome: Refusal, before: Any) -> None:
        from .daemon import audits
        from .lines import command_line

        if places := {**before, **audits(self.node)}:
            self.files.write(command_line(call, began, outcome.status, outcome.message, self.node.name), places)
