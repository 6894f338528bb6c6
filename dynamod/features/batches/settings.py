"""Settings of the frontend that batches add."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where files and batches are kept, and how many requests of batches are in work."""

    batches_dir: Annotated[
        str,
        Meta(description="folder for /v1/files and /v1/batches; frontends may share it; none: these are off"),
        Option("FOLDER", "for /v1/files and /v1/batches, which are off without it"),
    ] = ""
    batches_store_mb: Annotated[float, Meta(gt=0, description="all files of batches together")] = 1024.0
    batches_line_mb: Annotated[
        float, Meta(gt=0, description="longest line of a batch; `body_limit_mb` is the most")
    ] = 1.0
    batches_inflight: Annotated[int, Meta(ge=1, le=1024, description="requests of batches in work at once")] = 16
    owner_files: Annotated[int, Meta(ge=0, description="most files of one key; 0: no quota")] = 0
    owner_files_mb: Annotated[float, Meta(ge=0, description="all files of one key together; 0: no quota")] = 0.0
    owner_batches: Annotated[int, Meta(ge=0, description="most batches in work of one key; 0: no quota")] = 0

    @property
    def limit(self) -> int:
        """Bytes of all files."""
        return int(self.batches_store_mb * 1024 * 1024)

    @property
    def line_limit(self) -> int:
        """Bytes of a line."""
        return int(self.batches_line_mb * 1024 * 1024)
