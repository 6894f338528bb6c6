"""The names of vLLM that each request needs, imported after vLLM."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Names:
    """`params`: of sampling. `delta`: outputs with new tokens only. `prompt`: makes a prompt of ids.

    `form`: parameters of structured output. `refused`: errors of a request. `full`: the engine takes no more.
    `dead`: the engine has ended.
    """

    params: Any
    delta: Any
    prompt: Any
    form: Any
    refused: tuple[type[Exception], ...]
    full: type[Exception]
    dead: type[Exception]


def load_names() -> Names:
    """Import them."""
    from vllm import SamplingParams
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
    from vllm.v1.engine.exceptions import EngineDeadError

    return Names(
        params=SamplingParams,
        delta=RequestOutputKind.DELTA,
        prompt=tokens_input,
        form=StructuredOutputsParams,
        refused=(VLLMClientError, ValueError),
        full=GracefulHTTPError,
        dead=EngineDeadError,
    )
