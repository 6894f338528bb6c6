"""Settings of the frontend that the Responses API adds."""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option


class Quota(NamedTuple):
    """Responses of one owner, and their bytes; 0: no quota."""

    responses: int = 0
    bytes: int = 0


class ResponsesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where responses are kept, and how many."""

    responses_store_mb: Annotated[
        float, Meta(ge=0, description="memory (or disk) for responses that clients continue; 0: none are kept")
    ] = 64.0
    responses_dir: Annotated[
        str,
        Meta(description="keeps responses in this folder, also over a restart; frontends may share the folder"),
        Option("FOLDER", "keeps responses in this folder instead of memory; frontends may share the folder"),
    ] = ""

    owner_responses: Annotated[
        int, Meta(ge=0, description="most responses of one key that are kept, the least used leave first; 0: no quota")
    ] = 0
    owner_responses_mb: Annotated[
        float, Meta(ge=0, description="responses of one key together, the least used leave first; 0: no quota")
    ] = 0.0

    @property
    def quota(self) -> "Quota":
        """What one owner may keep."""
        return Quota(self.owner_responses, int(self.owner_responses_mb * 1024 * 1024))

    @property
    def limit(self) -> int:
        """Bytes of responses that are kept."""
        return int(self.responses_store_mb * 1024 * 1024)
