"""The command of the control socket that `dynamo audit` asks."""

import msgspec

from dynamod.extension.command import Command, NoArguments


class AuditFolders(msgspec.Struct, frozen=True):
    """Folders with the audit files of the graphs that run."""

    folders: list[str] = msgspec.field(default_factory=list[str])


AUDIT = Command("audit", NoArguments, AuditFolders, "The folders with the audit files of the graphs that run.")
