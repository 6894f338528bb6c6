"""Names of KV blocks: what engines, routers and simulators of different processes must agree on.

A block's *local* hash covers its own tokens; its *sequence* hash covers the whole prefix up to its end, so equal
sequence hashes mean equal KV content. Formulas and seed are those of NVIDIA Dynamo's router, so that its events and
ours can be mixed: local = xxh3_64(little-endian u32 tokens, seed 1337); the first block's sequence hash is its local
hash, each later one xxh3_64(previous sequence hash, local hash; both little-endian u64, seed 1337). What blocks depend
on in addition to tokens, an adapter, is a salt: a text whose xxh3_64 is added to the seed of the local hashes, as in
NVIDIA Dynamo.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

from xxhash import xxh3_64_intdigest

SEED = 1337
_PAIR = Struct("<QQ").pack


def local_hashes(ids: bytes, block_size: int, salt: str = "") -> list[int]:
    """Hash each full block of packed token ids (`message.tokens`); a partial tail has no name."""
    step, seed = 4 * block_size, SEED
    if salt:
        seed = (SEED + xxh3_64_intdigest(salt.encode())) % 2**64
    return [xxh3_64_intdigest(ids[start : start + step], seed) for start in range(0, len(ids) // step * step, step)]


def chain(local: Iterable[int], parent: int | None = None) -> list[int]:
    """Sequence hashes of consecutive blocks, after the block with sequence hash `parent` if any."""
    out: list[int] = []
    append, digest, pair = out.append, xxh3_64_intdigest, _PAIR
    for value in local:
        parent = value if parent is None else digest(pair(parent, value), SEED)
        append(parent)
    return out


def block_hashes(ids: bytes, block_size: int, salt: str = "") -> list[int]:
    """Sequence hashes of the full blocks of packed token ids."""
    return chain(local_hashes(ids, block_size, salt))


class PrefixHashes:
    """Hashes of the full blocks of one sequence, which may grow. `local`, `blocks`: local and sequence hashes."""

    __slots__ = ("_size", "blocks", "local", "salt")

    def __init__(self, block_size: int, ids: bytes = b"", salt: str = "") -> None:
        self._size, self.salt = block_size, salt
        self.local: list[int] = []
        self.blocks: list[int] = []
        self.extend(ids)

    def extend(self, ids: bytes) -> None:
        """Further tokens, packed, from the end of the last full block on. A partial tail is not remembered."""
        local = local_hashes(ids, self._size, self.salt)
        self.blocks += chain(local, self.blocks[-1] if self.blocks else None)
        self.local += local

    def locals_of(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Local hashes of blocks of this sequence that follow each other, by their sequence hashes."""
        names, first = self.blocks, blocks[0]
        index = len(names) - 1 if names[-1] == first else names.index(first)
        return tuple(self.local[index : index + len(blocks)])
