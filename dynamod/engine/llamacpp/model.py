"""One loaded model with its context: steps, and what happens to KV cells in between. Blocks; one thread at a time."""

import ctypes
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamod.message.discovery import Adapter
from dynamod.message.errors import UserError
from dynamod.message.worker import Sampling
from dynamod.preprocess.gguf_file import read_metadata

from ..threads import openmp_threads
from .arguments import LlamaCppArguments
from .arrays import np
from .kv_cells import Operation
from .layout import digest, weights
from .library import first_error, last_error, last_errors, library, version
from .lora import LoadedAdapters
from .parameters import context_parameters, model_parameters
from .ranges import Ranges
from .sampling import Floats, Picked, Sampler
from .scores import SCORED, Scores
from .sizing import cell_bytes, cells_for
from .states import States
from .transfers import Transfer, Transfers
from .vocabulary import Vocabulary

log = logging.getLogger("dynamod.engine")

REPORT_INTERVAL = 3.0
"""Seconds between two lines about the progress of loading."""

REASONS = {1: "no cells are free", 2: "it was aborted", -1: "the batch is not valid", -2: "memory is short"}


class StepFailed(Exception):
    """llama.cpp could not compute the step."""


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens `ids` of the sequence `slot`, from position `start` on. `sampler`: chooses what follows, None: nothing.

    No ids: the one that the step before has chosen for this slot. `scores`: of its prompt, where they are wanted.
    """

    slot: int
    start: int
    ids: Sequence[int]
    sampler: Sampler | None
    scores: Scores | None = None

    @property
    def rows(self) -> int:
        """Number of its tokens that are scored, from the first on."""
        return 0 if self.scores is None else self.scores.rows(self.start, len(self.ids))


class Model:
    """`cells`: tokens that the KV cache holds. `context_length`: of one sequence. `slots`: sequences at a time.

    `shares`: whether a prefix of one sequence can be given to another. `ranges`: exports and imports blocks, where the
    prefix cache is on and there is a sequence left for it; `states`: whole states, of a model that cannot share a
    prefix. `adapters`: the loaded ones.
    """

    def __init__(
        self,
        path: Path,
        arguments: LlamaCppArguments,
        context_length: int | None,
        goes_on: Callable[[], bool],
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """Load. `goes_on()` False ends the loading. Raises UserError."""
        self._api = api = library()
        self._model: Any = None
        self._context: Any = None
        self._arguments = arguments
        last_errors.clear()
        began = time.monotonic()
        try:
            self._load(path, goes_on)
            self.vocabulary = Vocabulary(api, self._model)
            self._check_kind()
            self.adapters = LoadedAdapters(api, self._model)
            for one in adapters:  # before the context is made, which counts them when it sizes its graphs
                self.adapters.load(one)
            self._open(path, context_length)
        except BaseException:
            self.free()
            raise
        log.info("llama.cpp has loaded %s in %.1f s", path, time.monotonic() - began)

    def _load(self, path: Path, goes_on: Callable[[], bool]) -> None:
        api, arguments = self._api, self._arguments
        params, kept = model_parameters(api, arguments)
        params.progress_callback = callback = api.llama_progress_callback(_progress(path, goes_on))
        self._model = api.llama_model_load_from_file(os.fsencode(path), params)
        del callback, kept
        if not self._model:
            reason = first_error() if goes_on() else "it was stopped"
            raise UserError(f"llama.cpp cannot load {path}: {reason}", "check the file, or download it again")

    def _check_kind(self) -> None:
        """Refuse what is no model for text; learn what its memory can do."""
        api, model = self._api, self._model
        for test, what in (
            ("llama_model_has_encoder", "an encoder-decoder"),
            ("llama_model_is_diffusion", "a diffusion model"),
        ):
            if hasattr(api, test) and getattr(api, test)(model):
                raise UserError(f"the model is {what}", "llamacpp serves decoder-only models; take another engine")
        window, recurrent = int(api.llama_model_n_swa(model)), bool(api.llama_model_is_recurrent(model))
        hybrid = bool(api.llama_model_is_hybrid(model))
        self.shares = not ((window and not self._arguments.swa_full) or recurrent or hybrid)
        if not self.shares and self._arguments.enable_prefix_caching:
            kind = (
                "is recurrent" if recurrent or hybrid else f"has a sliding window of {window} tokens, without swa_full"
            )
            log.info("the model %s, so prefixes cannot be shared: the prefix cache is off", kind)

    def _open(self, path: Path, context_length: int | None) -> None:
        """Make the context, as large as the arguments say or as fits."""
        api, arguments, model = self._api, self._arguments, self._model
        trained = int(api.llama_model_n_ctx_train(model) * arguments.stretch)
        metadata = read_metadata(path)
        cells = cells_for(arguments, trained, cell_bytes(metadata, arguments), context_length)
        self._weights = weights(path, metadata, cells)
        caching = self.shares and arguments.enable_prefix_caching
        most = min(int(api.llama_max_parallel_sequences()), 256)
        wanted = arguments.max_num_seqs + (arguments.max_cached_seqs if caching else 0)
        spare = int(caching and arguments.max_num_seqs < most)  # sequence for exports and imports
        self.slots = min(most - spare, wanted)
        params = context_parameters(api, arguments)
        params.n_ctx, params.n_seq_max, params.swa_full = cells, self.slots + spare, caching
        params.n_batch = arguments.max_num_batched_tokens
        params.n_ubatch = min(arguments.n_ubatch, arguments.max_num_batched_tokens)
        params.n_outputs_max = self.slots + spare + SCORED  # llama.cpp's own, n_batch, must not be below the slots
        params.n_threads = arguments.n_threads or openmp_threads()
        params.n_threads_batch = arguments.n_threads_batch or params.n_threads
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            problem = f"llama.cpp cannot make a context of {cells} cells for {path}: {last_error()}"
            raise UserError(problem, "lower n_ctx")
        self.cells = cells  # llama.cpp rounds up; what it has beyond stays unused
        self.context_length = min(context_length or trained or cells, cells)
        self._memory = api.llama_get_memory(self._context)
        if not self._memory:
            raise UserError(
                f"{path} is an encoder, which makes no answers", "give the argument embeddings: it makes vectors"
            )
        self.ranges = Ranges(api, self._context, self.slots, arguments.block_size) if spare else None
        self.states = None if self.shares else States(api, self._context)
        self._batch = Batch(api, arguments.max_num_batched_tokens)
        log.info("llama.cpp: %d KV cells, %d threads, context %d", cells, params.n_threads, self.context_length)

    def warm(self) -> float:
        """Compute a token or two, so that the weights are in memory; returns tokens per second. Raises StepFailed.

        No more: the first prompt has to wait for what is computed here. Tokens of a prompt take less time each.
        """
        chooses = Sampler(Sampling(temperature=0.0), self.vocabulary.size, 0)  # so that the output layer computes too
        rate = 0.0

        def compute(count: int) -> None:
            nonlocal rate
            began, most = time.monotonic(), self._arguments.max_num_batched_tokens
            for start in range(0, count, most):
                self.step([], [Work(0, start, [1 % self.vocabulary.size] * min(most, count - start), chooses)])
            rate = count / max(1e-6, time.monotonic() - began)

        if self._transfers is None:
            compute(1)
        else:
            self._transfers.measure(compute)
        self._api.llama_memory_clear(self._memory, False)
        return rate

    @property
    def _transfers(self) -> Transfers | None:
        return self.ranges or self.states

    @property
    def export_bytes(self) -> int:
        """Of a block for another worker, or of a prompt's state at least; 0 where there are none."""
        return 0 if self._transfers is None else self._transfers.export_bytes

    @functools.cached_property
    def layout(self) -> str:
        """Digest of what must agree with another process for blocks to be exchanged; empty where they are not."""
        if self._transfers is None:
            return ""
        return digest(self._weights, self._transfers.head, version(), self._arguments)

    def step(
        self, operations: Sequence[Operation | Transfer], work: Sequence[Work], adapter: str = ""
    ) -> list[Picked | Exception]:
        """Move cells, compute, and choose a token for each of `work` that has a sampler, in that order.

        Without work only cells are moved. `adapter`: digest of the adapter that computes, empty: the model alone.

        An exception instead of a token ends that answer alone. Raises StepFailed when nothing was computed.
        """
        api = self._api
        for operation in operations:
            if isinstance(operation, Transfer):
                assert self._transfers is not None
                self._transfers.run(operation)
                continue
            source, target, start, end = operation
            if source < 0:
                api.llama_memory_seq_rm(self._memory, target, start, end)
            else:
                api.llama_memory_seq_cp(self._memory, source, target, start, end)
        if not work:
            return []
        self.adapters.use(self._context, adapter)
        last_errors.clear()
        try:
            code = api.llama_decode(self._context, self._batch.of(work))
        except KeyError:
            raise StepFailed("the step before has failed") from None
        if code:
            reason = last_error(REASONS.get(code, f"code {code}"))
            raise StepFailed(f"llama.cpp could not compute a step: {reason}")
        wanted = [(one.slot, one.sampler) for one in work if one.sampler is not None]
        scored = sum([one.rows for one in work])
        if not wanted and not scored:
            return []
        pointer = api.llama_get_logits(self._context)
        logits: Floats = np.ctypeslib.as_array(pointer, (len(wanted) + scored, self.vocabulary.size))
        if scored:
            logits = _score(work, logits)
        best = logits.argmax(1).tolist()
        picked: list[Picked | Exception] = []
        for (slot, sampler), row, index in zip(wanted, logits, best, strict=True):
            one = Picked(index) if sampler.plain and np.isfinite(row[index]) else _pick(sampler, row)
            picked.append(one)
            self._batch.chosen[slot] = index = 0 if isinstance(one, Exception) else one.index
            sampler.take(index)
        return picked

    def drop_adapter(self, digest: str) -> None:
        """Give the memory of an adapter back. No later step uses it."""
        self.adapters.drop(self._context, digest)

    def free(self) -> None:
        """Give everything back. Nothing may be computing."""
        context, model, self._context, self._model = self._context, self._model, None, None
        if context:
            self._api.llama_free(context)
        if model:
            self._api.llama_model_free(model)


def _score(work: Sequence[Work], logits: Floats) -> Floats:
    """Give the rows of prompts away; what is left are those from which tokens are chosen."""
    at, rest = 0, list[int]()
    for one in work:
        if rows := one.rows:
            assert one.scores is not None
            one.scores.take(one.start, logits[at : at + rows])
            at += rows
        if one.sampler is not None:
            rest.append(at)
            at += 1
    return logits[rest]


def _pick(sampler: Sampler, row: Floats) -> Picked | Exception:
    try:
        return sampler.pick(row)
    except Exception as error:  # one answer's trouble is not its neighbours'
        return error


class Batch:
    """llama.cpp's batch over arrays that are made once."""

    def __init__(self, api: Any, most: int) -> None:
        self.chosen: dict[int, int] = {}  # ids by the last step, for each slot
        self._token, self._position, self._slot = (np.zeros(most, np.int32) for _ in range(3))
        self._wanted = np.zeros(most, np.int8)
        self._one = np.ones(most, np.int32)
        self._slots = (self._slot.ctypes.data + 4 * np.arange(most)).astype(np.uintp)
        self._places = np.arange(most, dtype=np.int32)
        self._struct = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._position, ctypes.c_int32),
            n_seq_id=_pointer(self._one, ctypes.c_int32),
            seq_id=_pointer(self._slots, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    def of(self, work: Sequence[Work], *, every: bool = False) -> Any:
        """The batch of these rows, valid until the next call. A row without ids gets the id that was chosen last.

        Raises KeyError where no id was chosen. `every`: something is wanted of each token, and not only of the last
        one of a row with a sampler.
        """
        chosen, self.chosen = self.chosen, {}
        at = 0
        for one in work:
            ids = one.ids or (chosen[one.slot],)
            end = at + len(ids)
            self._token[at:end] = ids
            self._position[at:end] = self._places[: end - at]
            self._position[at:end] += one.start
            self._slot[at:end] = one.slot
            self._wanted[at:end] = every
            self._wanted[at : at + one.rows] = True
            if one.sampler is not None:
                self._wanted[end - 1] = True
            at = end
        self._struct.n_tokens = at
        return self._struct


def _pointer(values: Any, kind: Any) -> Any:
    return ctypes.cast(values.ctypes.data, ctypes.POINTER(kind))


def _progress(path: Path, goes_on: Callable[[], bool]) -> Callable[[float, object], bool]:
    """What llama.cpp calls while it loads: reports how far that is; False ends it."""
    reported = time.monotonic()

    def progress(share: float, _data: object) -> bool:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= REPORT_INTERVAL:
            reported = now
            log.info("llama.cpp has loaded %.0f %% of %s", 100 * share, path.name)
        return goes_on()

    return progress
