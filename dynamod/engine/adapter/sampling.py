"""What such engines call alike in a request: names of sampling, seeds after an answer's beginning, logprobs."""

from typing import Any

from xxhash import xxh3_64_intdigest

from dynamod.message.worker import Generate

Tops = tuple[tuple[tuple[int, float], ...], ...]
"""Per token the best: (token id, log probability)."""


def sampling_names(request: Generate, **own: Any) -> dict[str, Any]:
    """What the request says of sampling, by the names that all of them have. `own`: an engine's own names.

    What is None is not said, so that the engine's default counts.
    """
    given = request.sampling
    names = {
        "temperature": given.temperature,
        "top_p": given.top_p,
        "top_k": given.top_k if given.top_k and given.top_k > 0 else None,
        "min_p": given.min_p,
        "presence_penalty": given.presence_penalty,
        "frequency_penalty": given.frequency_penalty,
        "repetition_penalty": given.repetition_penalty,
        **own,
    }
    return {name: value for name, value in names.items() if value is not None}


def seed_behind(seed: int | None, prior: int) -> int | None:
    """The seed of an answer that continues after `prior` tokens: the noise of its beginning must not come again."""
    return seed if seed is None or not prior else xxh3_64_intdigest(f"{seed} {prior}".encode()) >> 1
