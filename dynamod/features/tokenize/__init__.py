"""vLLM's routes for prompts: token ids of texts and back, and what a chat becomes."""

from collections.abc import Sequence

from dynamod.extension.feature import Feature


def _endpoints() -> Sequence[object]:
    from .detokenize import Detokenize, DetokenizeBelow
    from .render import Render
    from .tokenize import Tokenize, TokenizeBelow

    return Render(), Tokenize(), Detokenize(), TokenizeBelow(), DetokenizeBelow()


FEATURE = Feature(
    "tokenize",
    "vLLM's routes /tokenize, /detokenize and .../render: prompts as token ids, and back",
    endpoints=_endpoints,
)
