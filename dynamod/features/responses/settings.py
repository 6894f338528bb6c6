"""Settings of the frontend that the Responses API adds."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option


class ResponsesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where responses are kept."""

    responses_store_mb: Annotated[
        float, Meta(ge=0, description="memory (or disk) for responses that clients continue; 0: none are kept")
    ] = 64.0
    responses_dir: Annotated[
        str,
        Meta(description="keeps responses in this folder, also over a restart; frontends may share the folder"),
        Option("FOLDER", "keeps responses in this folder instead of memory; frontends may share the folder"),
    ] = ""

    @property
    def limit(self) -> int:
        """Bytes of responses that are kept."""
        return int(self.responses_store_mb * 1024 * 1024)
