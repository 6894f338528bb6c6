"""Prompts whose whole state is exported, or comes. Pure: the thread does what `transfer` is given.

For models that cannot give the KV cells of positions: what `handoff` does with blocks is done with one block of no
fixed length, which is the state after all tokens of the prompt but the last. No cache has it afterwards.
"""

import functools
import logging

from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens

from .handoff import Export, Shared
from .kv_cells import Sequence
from .transfers import Transfer

log = logging.getLogger("dynamod.engine")

MOST_BYTES = 1 << 30
"""Of all states that wait for a slot. The source of a session holds as many."""


def state_name(sequence: Sequence, count: int) -> int:
    """Of the state after the first `count` tokens, at least one: the hash of one block that has them all."""
    [name] = block_hashes(tokens.pack(sequence.ids[:count]), count, sequence.adapter)
    return name


class StateExport(Export):
    """Computes a sequence up to its `split`, and exports the state there."""

    def _count(self) -> int:
        return 1

    def _part(self, index: int) -> tuple[int, int, int]:
        split = self._sequence.split
        return 0, split, state_name(self._sequence, split)


class HeldState:
    """A sequence of which nothing is computed before `go`, and whose state may come until then.

    The bytes stay here until it is admitted. `begin` is called then, each time when it had to give way meanwhile.
    """

    def __init__(self, shared: Shared, sequence: Sequence) -> None:
        self._shared, self._sequence = shared, sequence
        self._name = 0
        self._begun = 0  # imports
        self._open, self._going, self._taken = len(sequence.ids) > 1, False, False
        self.data = b""
        shared.scheduler.held.append(sequence)

    @property
    def first(self) -> int:
        """States that have been put: one, or none."""
        return int(self._taken)

    @property
    def span(self) -> int:
        """Tokens after which the state is."""
        return len(self._sequence.ids) - 1

    def put(self, name: int, data: bytes) -> bool:
        """Take the state, whose name must be that of the prompt's. False: it cannot be taken, continue without it."""
        sequence = self._sequence
        if self._going or sequence.gone or not self._open:
            return False
        self._open = False
        if name != state_name(sequence, self.span) or self._waiting() + len(data) > MOST_BYTES:
            return False
        self._name, self.data, sequence.state, self._taken = name, data, self, True
        return True

    def go(self) -> None:
        """No state comes any more: compute what is missing. Called again, it does nothing."""
        if not (self._going or self._sequence.gone):
            self._going = True
            self._shared.scheduler.go(self._sequence)
            self._shared.wake()

    def cancel(self) -> None:
        """Its reader has left. Does nothing when it has ended."""
        self._shared.scheduler.remove(self._sequence)

    def begin(self) -> None:
        """The sequence has a slot: import the state there."""
        sequence = self._sequence
        sequence.awaited = True
        self._begun += 1
        told = functools.partial(self._imported, self._begun)
        self._shared.transfer(Transfer(sequence.slot, 0, self.span, self._name, self.data, told))

    def _waiting(self) -> int:
        """Bytes of all states that are here."""
        scheduler = self._shared.scheduler
        sequences = (*scheduler.held, *scheduler.waiting, *scheduler.running)
        return sum([len(one.state.data) for one in sequences if one.state is not None])

    def _imported(self, number: int, result: bytes | Exception) -> None:
        """The thread has done an import. One before which the sequence had to give way has left nothing."""
        shared, sequence = self._shared, self._sequence
        if sequence.gone or sequence.slot < 0 or number != self._begun:
            return
        sequence.state, sequence.awaited, self.data = None, False, b""
        if isinstance(result, Exception):
            log.warning("llama.cpp: a state was not imported, and the prompt is computed: %s", result)
            shared.totals.refused += 1
        else:
            shared.totals.imported += 1
            sequence.found = self.span
            shared.cells.fill(sequence, self.span)
        shared.wake()
