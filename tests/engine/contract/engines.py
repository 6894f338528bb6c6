"""The engines of the contract, and what each of them is excused from. Not a test."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from dynamod.preprocess.locate import locate

TOKENS = """
import asyncio

async def generate(request):
    ids = [*request["token_ids"], *request.get("prior_output", ())]
    start = len(request.get("prior_output", ()))
    for place in range(start, len(request["token_ids"])):
        yield {"token_ids": [request["token_ids"][place]]}
        await asyncio.sleep(0.002)
    yield {"token_ids": [], "finish_reason": "stop"}
"""
CHUNKS = """
import asyncio

async def generate(request):
    for letter in request["messages"][-1]["content"]:
        yield {"choices": [{"index": 0, "delta": {"content": letter}, "finish_reason": None}]}
        await asyncio.sleep(0.002)
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
"""


@dataclass(frozen=True)
class Served:
    """How an engine is served, and what it can. `knows`: it has the sample's weights; `echoes`: it answers the prompt.

    `exact`: it goes on behind given tokens, on another worker with the same text. `tokens`: it says how many there are.
    """

    engine: str
    model: str = "sample"
    needs: str = ""
    file: str = ""
    knows: bool = False
    echoes: bool = False
    exact: bool = False
    logprobs: bool = False
    seed: bool = False
    min_tokens: bool = False
    grammars: bool = False
    replays: bool = False  # it goes on in the middle of a form
    tokens: bool = True
    context: bool = True  # it has a model, whose context is limited
    limits: bool = True  # stop strings and limits are kept for it
    python: str = ""  # the variable that names its interpreter
    arguments: tuple[str, ...] = ()

    def missing(self) -> str:
        """Why it cannot be served here; empty when it can."""
        if self.python and not os.environ.get(self.python):
            return f"{self.python} names no interpreter with {self.engine}"
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"no {self.needs}"
        return ""

    def words(self, url: str) -> list[Any]:
        """Behind `dynamo serve graphs.agg:Frontend`. `url`: of a server with an echo engine."""
        model = str(locate(self.model)) if self.model.endswith(".gguf") else self.model
        python = [f"--Worker.ServiceArgs.python={os.environ[self.python]}"] if self.python else []
        return [f"--Worker.engine={self.engine.format(url=url)}", f"--Worker.model={model}", *python, *self.arguments]


ENGINES = {
    "mistralrs": Served("mistralrs", needs="mistralrs", knows=True, grammars=True),
    "llamacpp": Served(
        *("llamacpp", "sample.gguf", "llama_cpp"),
        knows=True,
        exact=True,
        logprobs=True,
        seed=True,
        min_tokens=True,
        grammars=True,
        replays=True,
    ),
    "vllm": Served(
        *("vllm", "sample"),
        knows=True,
        exact=True,
        logprobs=True,
        seed=True,
        min_tokens=True,
        grammars=True,
        python="DYNAMOD_TEST_VLLM_PYTHON",
        arguments=("--Worker.engine_args.kv_cache_memory_bytes=200000000",),
    ),
    "sglang": Served(
        *("sglang", "sample"),
        knows=True,
        exact=True,
        logprobs=True,
        grammars=True,
        python="DYNAMOD_TEST_SGLANG_PYTHON",
    ),
    "mocker": Served("mocker", exact=True, seed=True, min_tokens=True, grammars=True, replays=True),
    "echo_core": Served("echo_core", echoes=True, exact=True, min_tokens=True),
    "echo_full": Served("echo_full", echoes=True, context=False, arguments=("--Worker.served_model_name=sample",)),
    "openai": Served("openai:{url}/v1", echoes=True),
    "pytok": Served("pytok:my_tokens.py", file=TOKENS, echoes=True),
    "pystr": Served(
        "pystr:my_chunks.py",
        file=CHUNKS,
        echoes=True,
        context=False,
        tokens=False,
        limits=False,
        arguments=("--Worker.served_model_name=sample",),
    ),
}
