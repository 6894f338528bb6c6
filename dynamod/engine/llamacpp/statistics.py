"""What the engine counts."""

from typing import Annotated

from msgspec import Meta

from dynamod.actor import Total

from ..batching.engine import BatchingStatistics


class LlamaCppStatistics(BatchingStatistics, frozen=True):
    """With the computed tokens, and the blocks that moved between workers. A whole state counts as a block."""

    computed_total: Annotated[int, Meta(description="Computed tokens of prompts and answers.")] = 0
    exported_blocks: Annotated[
        Total, Meta(description="Blocks that went to other workers; a whole state counts as a block.")
    ] = 0
    imported_blocks: Annotated[Total, Meta(description="Blocks that came from other workers.")] = 0
    refused_blocks: Annotated[
        Total, Meta(description="Blocks that came from other workers, could not be used, and were computed.")
    ] = 0
