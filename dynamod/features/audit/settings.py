"""Settings of the frontend that the audit log adds, and its default folder."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option
from dynamod.message.errors import UserError
from dynamod.observe.rotated import Rotation

SETTING = "audit_dir"
REDACTED = ("api_key", "authorization", "password", "secret", "token")
"""Members of bodies whose values are replaced where no setting says which; in small or large letters."""
Name = Annotated[str, Meta(min_length=1, max_length=100)]


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests and commands are written, where, how much is kept, and what of bodies."""

    audit: Annotated[
        bool,
        Meta(description="writes a line per request and per changing command to files in `audit_dir`"),
        Option("BOOL", "writes a line per request to files, see dynamo audit (default: off)", "DYN_AUDIT"),
    ] = False
    audit_dir: Annotated[
        str,
        Meta(description="folder of the audit files, which turns them on, too (~/.local/state/dynamod/audit)"),
        Option("FOLDER", "as --audit, with the files in this folder", "DYN_AUDIT_DIR"),
    ] = ""
    audit_file_mb: Annotated[float, Meta(ge=0.001, le=10_000, description="size from which a file is closed")] = 32.0
    audit_file_hours: Annotated[
        float, Meta(ge=0, le=8784, description="age at which a file is closed, 24: at midnight UTC; 0: any age")
    ] = 24.0
    audit_files: Annotated[int, Meta(ge=1, le=10_000, description="closed files that each process keeps")] = 30
    audit_status_routes: Annotated[
        bool, Meta(description="also requests for /health, /metrics and the like that were answered without error")
    ] = False
    audit_bodies: Annotated[
        bool, Meta(description="lines have the bodies of requests to models and of their answers: prompts and texts")
    ] = False
    audit_body_kb: Annotated[
        float, Meta(gt=0, le=2048, description="largest body; of a longer stream the events that fit")
    ] = 256.0
    audit_redact: Annotated[
        list[Name],
        Meta(description=f"members of bodies whose values are replaced, at any depth ({', '.join(REDACTED)})"),
    ] = msgspec.field(default_factory=lambda: [*REDACTED])

    @property
    def on(self) -> bool:
        """Whether lines are written."""
        return self.audit or bool(self.audit_dir)

    @property
    def rotation(self) -> Rotation:
        """How files are rotated."""
        return Rotation(int(self.audit_file_mb * 1024 * 1024), self.audit_file_hours * 3600, self.audit_files)

    def folder(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Where the files are. Raises UserError when there is no default."""
        return Path(self.audit_dir) if self.audit_dir else default_folder(environ)


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Below the logs of the service manager, else below the state of the user. Raises UserError where there is none."""
    if logs := environ.get("LOGS_DIRECTORY", "").split(":")[0]:
        return Path(logs) / "audit"
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if not state and not home:
        raise UserError(f"{SETTING}: the default needs a home folder", f"name a folder: {SETTING}: /var/log/audit")
    return (Path(state) if state else Path(home) / ".local/state") / "dynamod/audit"
