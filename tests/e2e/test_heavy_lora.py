"""LoRA adapters with real vLLM: the texts of llama.cpp with the same adapters, the router, a kill, loading by API."""

import importlib.util
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import write_adapter, write_peft

from .lora import NAMES, SEEDS, WORDS, as_list, change, flags, models, ready, text, texts
from .test_heavy import ENV, START, VLLM, installed

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_peft(folder / name, seed) for name, seed in SEEDS.items()}


def expected(machine: Any, asked: list[tuple[str, str]]) -> list[str] | None:
    """Of llama.cpp, where it is there."""
    if importlib.util.find_spec("llama_cpp") is None:
        return None
    found = {name: write_adapter(machine.folder / f"{name}.gguf", seed) for name, seed in SEEDS.items()}
    words = ("in=http", "out=llamacpp", "sample.gguf", "--http-port", 0, *flags(found, "one", "two"))
    command = machine.start("dynamo-run", *words, "--model-name", "sample", **ENV)
    url = command.ready()
    machine.until(lambda: set(models(machine, url)) == set(NAMES))
    answers = texts(machine, url, asked)
    command.end()
    return answers


def test_adapters_of_vllm(machine: Any, adapters: dict[str, Path]) -> None:
    engine = installed(VLLM)
    asked = [(name, prompt) for prompt in WORDS for name in NAMES]
    wanted = expected(machine, asked)
    command = machine.start(
        *("dynamo", "serve", "graphs.agg_router:Frontend", "--Frontend.port=0", "--Processor.router_mode=kv"),
        *("--Worker.engine=vllm", "--Worker.ServiceArgs.workers=2", f"--Worker.ServiceArgs.python={engine.python}"),
        *("--Worker.model=sample", "--Worker.kv_cache_block_size=32", "--Frontend.allow_runtime_lora_updating=true"),
        "--Frontend.lora_dir=/",
        f"--Worker.engine_args={json.dumps(engine.arguments)}",
        f"--Worker.lora={as_list(adapters, 'one', 'two')}",
        **ENV,
    )
    url = command.ready(START)
    ready(machine, url, 2, START)
    alone = texts(machine, url, asked)
    assert all(len(set(alone[first : first + 3])) == 3 for first in range(0, len(asked), 3)), "each has its own text"
    assert wanted in (None, alone)
    assert texts(machine, url, asked, together=len(asked)) == alone

    long = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(3) as pool:
        streams = list(pool.map(lambda name: machine.stream(url, WORDS[0], model=name, **long), NAMES))
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    ready(machine, url, 2, START)
    again = [machine.stream(url, WORDS[0], model=name, **long).read().text for name in NAMES]
    assert again == [stream.text for stream in streams]

    status, said = change(machine, url, "load", lora_name="three", lora_path=str(adapters["three"]))
    assert status == 200, said
    assert text(machine, url, "three", WORDS[0]) not in alone[:3]
    assert change(machine, url, "unload", lora_name="three")[0] == 200
    assert set(models(machine, url)) == set(NAMES)
    command.end()
