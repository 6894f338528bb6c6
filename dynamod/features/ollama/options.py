"""`options` of a request, as fields of the chat or completion that it means."""

import logging
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.message.openai import Penalty, RepetitionPenalty, StopString, TopK

log = logging.getLogger("dynamod.frontend")

_INT32, _INT64 = 2**31 - 1, 2**63 - 1


class OllamaOptions(msgspec.Struct, frozen=True):
    """Ollama's options that mean something here; the others are in `IGNORED`.

    `num_predict`: tokens of the answer, 0 and less for as many as fit.
    """

    num_predict: Annotated[int, Meta(ge=-_INT32, le=_INT32)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: TopK | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=64)] | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    num_ctx: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    num_keep: Any = None
    numa: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    embedding_only: Any = None
    typical_p: Any = None
    tfs_z: Any = None
    repeat_last_n: Any = None
    mirostat: Any = None
    mirostat_eta: Any = None
    mirostat_tau: Any = None
    penalize_newline: Any = None


_SAME = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    "stop",
)
IGNORED = {
    "num_ctx": "the context length is a setting of the worker: --context-length",
    "repeat_last_n": "the penalty of repetition counts the whole answer",
    **dict.fromkeys(("typical_p", "tfs_z"), "no engine here samples so; use top_p or min_p"),
    **dict.fromkeys(("mirostat", "mirostat_eta", "mirostat_tau"), "no engine here samples so; use temperature"),
    **dict.fromkeys(("penalize_newline", "num_keep", "logits_all", "vocab_only", "embedding_only"), "it is not known"),
    **dict.fromkeys(
        ("num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "use_mmap", "use_mlock"),
        "engines get such settings when they start: engine_args",
    ),
}
"""OllamaOptions without effect, with the reason."""
_told: set[str] = set()  # names of IGNORED that the log has


def fields_of(options: OllamaOptions | None) -> dict[str, Any]:
    """The fields of a chat or completion. Writes one line for each option without effect, the first time."""
    if options is None:
        return {}
    for name, why in IGNORED.items():
        if name not in _told and getattr(options, name) is not None:
            _told.add(name)
            log.info("Ollama's option `%s` has no effect: %s", name, why)
    found = {name: value for name in _SAME if (value := getattr(options, name)) not in (None, [])}
    if options.repeat_penalty is not None:
        found["repetition_penalty"] = options.repeat_penalty
    if options.num_predict is not None and options.num_predict > 0:
        found["max_tokens"] = options.num_predict
    return found
