"""vLLM's routes for prompts: token ids of texts and back, and what a chat becomes."""

from collections.abc import Sequence

from dynamod.extension.feature import Feature


def _endpoints() -> Sequence[object]:
    from .detokenize import Detokenize
    from .render import Render
    from .tokenize import Tokenize

    return Render(), Tokenize(), Detokenize()


FEATURE = Feature(
    "tokenize",
    "vLLM's routes /tokenize, /detokenize and .../render: prompts as token ids, and back",
    endpoints=_endpoints,
)
