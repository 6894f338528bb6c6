"""What must agree for the bytes of a block to mean the same in two processes, as one digest."""

from pathlib import Path

import msgspec
from xxhash import xxh3_128

from dynamod.preprocess.gguf_file import Metadata, shards

from .arguments import LlamaCppArguments

FORMAT = 1
"""Of what `transfers` puts around llama.cpp's bytes."""

_PIECES, _PIECE = 64, 4096
"""Of each file of the weights, at equal distances: reading all of it would take as long as loading."""

_ARGUMENTS = (
    *("block_size", "cache_type_k", "cache_type_v", "swa_full", "rope_scaling", "rope_scale", "rope_freq_base"),
    *("rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
    "kv_overrides",
)


def weights(path: Path, metadata: Metadata, cells: int) -> str:
    """Digest of a model's file, or files: their lengths, the metadata, and pieces of the tensors.

    `cells`: of the context. Some models turn keys by other angles where it is longer than in training.
    """
    original = metadata.get(f"{metadata.get('general.architecture')}.rope.scaling.original_context_length", cells)
    found = xxh3_128(msgspec.json.encode([metadata, cells > original]))
    for file in shards(path):
        length = file.stat().st_size
        found.update(length.to_bytes(8, "little"))
        with file.open("rb") as opened:
            for number in range(_PIECES):
                opened.seek(max(0, length - _PIECE) * number // (_PIECES - 1))
                found.update(opened.read(_PIECE))
    return found.hexdigest()


def digest(weights: str, head: bytes, version: str, arguments: LlamaCppArguments) -> str:
    """Of all that. `head`: of llama.cpp's state, which says the kind of the cache; `version`: of the library."""
    given = [getattr(arguments, name) for name in _ARGUMENTS]
    return xxh3_128(msgspec.json.encode([FORMAT, weights, head, version, given])).hexdigest()
