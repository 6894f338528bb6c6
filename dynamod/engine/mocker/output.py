"""What the mocker answers: token ids that depend on the prompt, the seed and the position, and on nothing else.

So another mocker with the same model continues an answer with the very ids that the first would have given.
"""

import struct
from collections.abc import Callable, Sequence
from hashlib import shake_128
from pathlib import Path
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.message import tokens
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

FIRST, COUNT = 1000, 1000
"""NVIDIA Dynamo answers with ids from 1000 to 1999."""

_CHUNK = 64  # positions per call of the hash
_numbers = struct.Struct(f"<{_CHUNK}H").unpack
_key = struct.Struct("<QQ").pack


def noise_key(prompt: bytes, seed: int) -> bytes:
    """What the noise of one answer is made of."""
    return _key(xxh3_64_intdigest(prompt), seed % 2**64)


class OutputIds:
    """One answer. `ids`: packed ids by position, each shared by all answers; made when `reach` asks for them."""

    __slots__ = ("_key", "_table", "ids")

    def __init__(self, prompt: bytes, seed: int, table: Sequence[bytes]) -> None:
        self._key = noise_key(prompt, seed)
        self._table = table
        self.ids: list[bytes] = []

    def reach(self, count: int) -> None:
        """Make at least the first `count` ids."""
        ids, table, size = self.ids, self._table, len(self._table)
        while len(ids) < count:
            noise = shake_128(self._key + len(ids).to_bytes(8, "little")).digest(2 * _CHUNK)
            ids += [table[number % size] for number in _numbers(noise)]


def table(vocabulary: int, never: Sequence[int]) -> list[bytes]:
    """Packed ids that answers are made of: 1000 to 1999 or, in a small vocabulary, its last ones; none of `never`."""
    first = max(0, min(FIRST, vocabulary - COUNT))
    ids = [index for index in range(first, min(first + COUNT, vocabulary)) if index not in never]
    return [tokens.pack((index,)) for index in ids or (0,)]


class _Config(msgspec.Struct):
    vocab_size: int | None = None


class _Nested(_Config):
    text_config: _Config | None = None


def vocabulary_size(path: Path) -> int:
    """Ids that a model has, from its config.json; from its tokenizer, which takes long, when that has no number."""
    try:
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=_Nested)
    except (OSError, msgspec.MsgspecError):
        config = _Nested()
    size = config.vocab_size or (config.text_config.vocab_size if config.text_config is not None else None)
    if not size:
        from dynamod.preprocess.source import open_source

        size = int(open_source(path).build().get_vocab_size(with_added_tokens=True))
    return size


class Ids(Protocol):
    """The ids of one answer, packed, as far as `reach` has made them."""

    ids: list[bytes]

    def reach(self, count: int) -> None:
        """Make at least the first `count` ids, if there are so many."""


class Stream:
    """One request. `hashes`: of its full blocks, of prompt and output as it grows; `done`: tokens of the answer.

    `prompt_tokens`: of these, without what another instance has made.
    """

    __slots__ = ("_prompt", "_size", "done", "hashes", "output", "prompt_tokens", "reply", "send")

    def __init__(self, reply: Reply, request: Generate, output: Ids, size: int, hashes: PrefixHashes) -> None:
        self.reply = reply
        self.send: Callable[..., None] = reply.tokens
        self.output: Ids = output
        self.done = tokens.count(request.prior_output)
        self.hashes = hashes
        self._prompt = request.token_ids + request.prior_output
        self.prompt_tokens = tokens.count(request.token_ids)
        self._size = size

    def name(self, index: int) -> int:
        """Sequence hash of a block whose tokens are all known: the output does not depend on what happens."""
        size, blocks = self._size, self.hashes.blocks
        while len(blocks) <= index:
            start = len(blocks) * size
            ids = self._prompt[4 * start : 4 * (start + size)]
            if len(ids) < 4 * size:
                first, end = max(0, start + len(ids) // 4 - self.prompt_tokens), start + size - self.prompt_tokens
                self.output.reach(end)
                ids += b"".join(self.output.ids[first:end])
            self.hashes.extend(ids)
        return blocks[index]
