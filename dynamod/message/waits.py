"""Where requests without a token are, for `stage_requests` and `dynamo top`."""

from typing import Literal

import msgspec

Stage = Literal["preprocess", "route", "dispatch"]


class Waits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of a model in a stage, also 0. The names of stages and phases are NVIDIA Dynamo's.

    `preprocess`: checks, template, tokenizer. `route`: a place at a worker is asked for. `dispatch`: a worker has the
    request, and no token has come. `phase`: `prefill` at a prefill worker, `decode` where a pool of other workers
    computes prompts, else `aggregated`; empty for `preprocess`. `why`: of `route`, where requests wait there.
    """

    model: str
    stage: Stage
    phase: str
    requests: int
    why: str = ""
