"""What the engine counts."""

from dynamod.actor import Total

from ..batching.engine import BatchingStatistics


class LlamaCppStatistics(BatchingStatistics, frozen=True):
    """`computed_total`: tokens computed, of prompts and answers. Blocks that went to other workers and came from them;
    `refused_blocks`: blocks that came, could not be used, and were computed. A whole state counts as a block.
    """

    computed_total: int = 0
    exported_blocks: Total = 0
    imported_blocks: Total = 0
    refused_blocks: Total = 0
