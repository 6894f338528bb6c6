"""Further names of NVIDIA Dynamo's `dynamo.llm` and `dynamo.runtime`."""

from collections.abc import Iterable

from dynamod.kvcache.hashes import local_hashes
from dynamod.message import tokens

from .publishers import whole_number


def compute_block_hash_for_seq_py(ids: Iterable[int], kv_block_size: int) -> list[int]:
    """Local hashes (64 bits, unsigned) of the full blocks of token ids. Raises UserError for a block size below 1."""
    return local_hashes(tokens.pack(ids), whole_number("kv_block_size", kv_block_size))


def configure_dynamo_logging() -> None:
    """Show the process's log lines as the commands do (DYN_LOG and the other variables). Raises UserError."""
    from dynamod.observe.logs import configure

    from .connection import script_name

    configure(component=script_name())
