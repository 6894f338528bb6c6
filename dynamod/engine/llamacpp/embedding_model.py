"""A loaded model that makes vectors of texts, or scores of pairs. Blocks; one thread at a time."""

import math
from collections.abc import Sequence
from pathlib import Path

from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.vectors import pack

from ..threads import openmp_threads
from .arrays import np
from .library import last_error, last_errors
from .model import REASONS, Batch, Model, StepFailed, Work
from .parameters import FLASH, POOLINGS, context_parameters

MOST = 8192
"""Tokens that are computed at once by default. Memory for intermediate values grows with them."""
SCORES = 512 << 20
"""Bytes of attention scores up to which flash attention is off by default. With it the numbers of a vector
differ by some 1e-4 with what is computed alongside the text."""
ALIGNED = 16
"""Without it each text begins at a multiple of so many tokens of the batch: then sums are formed in the same order
whatever is computed alongside it, and its numbers differ by less than 1e-6."""
_POOLED = {number: name for name, number in POOLINGS.items()}
_RANK = 4


class EmbeddingModel(Model):
    """`batch`: tokens that are computed at once, and so of a text. `slots`: texts at once. `length`: of a vector.

    `align`: each text takes a multiple of so many tokens of the batch. `scores`: it makes no vectors, but a number from
    0 to 1 of two texts in one input.
    """

    def _open(self, path: Path, context_length: int | None) -> None:
        """Make a context with room for one batch: nothing is kept after it. Raises UserError."""
        api, arguments, model = self._api, self._arguments, self._model
        trained = int(api.llama_model_n_ctx_train(model))
        context = context_length or trained or MOST
        self.slots = min(int(api.llama_max_parallel_sequences()) - 1, arguments.max_num_seqs)
        unit = math.lcm(ALIGNED, self.slots + 1)  # llama.cpp divides a batch by its sequences
        self.batch = -(-max(arguments.max_num_batched_tokens, min(context, MOST)) // unit) * unit
        params = context_parameters(api, arguments)
        params.n_ctx = params.n_batch = params.n_ubatch = self.batch  # a text cannot be computed in parts
        params.n_seq_max, params.embeddings, params.swa_full = self.slots + 1, True, True  # one to align
        params.n_threads = arguments.n_threads or openmp_threads()
        params.n_threads_batch = arguments.n_threads_batch or params.n_threads
        if arguments.flash is None and 4 * int(api.llama_model_n_head(model)) * self.batch**2 <= SCORES:
            params.flash_attn_type = FLASH[False]
        self.align = ALIGNED if params.flash_attn_type == FLASH[False] else 1
        if arguments.pooling is not None:
            params.pooling_type = POOLINGS[arguments.pooling]
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            problem = f"llama.cpp cannot make a context for vectors of {self.batch} tokens for {path}: {last_error()}"
            raise UserError(problem, "lower the context length")
        pooling = int(api.llama_pooling_type(self._context))
        self.scores = pooling == _RANK
        if self.scores and int(api.llama_model_n_cls_out(model)) != 1:
            raise UserError(f"{path} sorts texts into classes", "take a model that scores pairs, or makes vectors")
        if not self.scores and pooling not in _POOLED:
            problem = f"{path} does not say how the vector of a text comes from those of its tokens"
            raise UserError(problem, f"give the argument pooling: {', '.join(POOLINGS)}")
        self.pooling = "rank" if self.scores else _POOLED[pooling]
        self.context_length = min(context, self.batch)
        self.length = 1 if self.scores else int(api.llama_model_n_embd_out(model))
        self._memory = api.llama_get_memory(self._context)  # none in encoders
        self._batch = Batch(api, self.batch)

    def warm(self) -> float:
        """Compute a token, so that the weights are in memory. Raises StepFailed."""
        self.vectors([tokens.pack([1 % self.vocabulary.size])])
        return 0.0

    def vectors(self, inputs: Sequence[bytes]) -> list[bytes | None]:
        """The packed vectors of some texts; None: it has no direction.

        Together they are not above `batch` and `slots`, with their lengths rounded to `align`. Raises StepFailed.
        """
        api = self._api
        work: list[Work] = []
        filled = 0
        for slot, ids in enumerate(inputs):
            work.append(Work(slot, 0, tokens.unpack(ids), None))
            rest = -tokens.count(ids) % self.align
            if rest and slot + 1 < len(inputs):
                work.append(Work(self.slots, filled, [0] * rest, None))
                filled += rest
        last_errors.clear()
        code = api.llama_decode(self._context, self._batch.of(work, every=True))
        try:
            if code:
                raise StepFailed(
                    f"llama.cpp could not compute vectors: {last_error(REASONS.get(code, f'code {code}'))}"
                )
            return [self._vector(slot) for slot in range(len(inputs))]
        finally:
            if self._memory:
                api.llama_memory_clear(self._memory, False)

    def _vector(self, slot: int) -> bytes | None:
        found = np.ctypeslib.as_array(self._api.llama_get_embeddings_seq(self._context, slot), (self.length,))
        if self.scores:
            score = 1 / (1 + math.exp(-float(np.clip(found[0], -80, 80))))
            return pack([score]) if math.isfinite(score) else None
        length = float(np.linalg.norm(found.astype(np.float64)))
        if not (np.isfinite(length) and length):
            return None
        return (found / length).astype("<f4").tobytes()
