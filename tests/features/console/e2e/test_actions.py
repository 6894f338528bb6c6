"""What the console changes, at real processes: models on demand, roles of workers, a drain, adapters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import write_adapter
from tests.e2e.conftest import ROOT
from tests.e2e.disagg import serve

from .test_browser import ADMIN, act

MODELS = """
models:
  a: {engine: mocker, model: sample}
  b: {engine: echo_core, model: sample}
budget: {models: 1, patience: 1}
"""


SCRIPTED = """
from pathlib import Path

from tokenizers import Tokenizer

import dynamod.sample

TOKENIZER = Tokenizer.from_file(str(next(Path(dynamod.sample.__file__).parent.rglob("tokenizer.json"))))
TEXT = '<think>Which city?</think><tool_call>\\n{"name": "weather", "arguments": {"city": "Paris"}}\\n</tool_call>'


async def generate(request):
    for token in TOKENIZER.encode(TEXT, add_special_tokens=False).ids:
        yield {"token_ids": [token]}
    yield {"token_ids": [], "finish_reason": "stop"}
"""
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_a_chat_shows_reasoning_and_calls(machine: Any, browse: Callable[..., Any]) -> None:
    script = machine.folder / "scripted.py"
    script.write_text(SCRIPTED)
    words = ("in=http", f"out=pytok:{script}", "--model-path=sample", "--model-name=sample", "--http-port=0")
    url = machine.start("dynamo-run", *words, "--tool-call-parser=hermes", "--reasoning-parser=qwen3").ready()
    page = browse()
    page.open(url)
    page.go("Chat")
    page.page.get_by_text("More").first.click()
    page.page.get_by_label("Tools").first.fill(json.dumps(WEATHER))
    page.page.fill("#prompt", "What is the weather in Paris?")
    page.page.keyboard.press("Enter")
    page.sees(".said.model .call", 'weather({"city": "Paris"})')
    page.sees(".said.model details p", "Which city?")
    assert page.find() == []
    assert page.errors == []


def test_models_are_loaded_and_unloaded(machine: Any, browse: Callable[..., Any]) -> None:
    file = machine.folder / "models.yaml"
    file.write_text(MODELS)
    url = machine.start("dynamo", "serve", "-f", file, "--Frontend.port=0").ready()
    page = browse()
    page.open(url)
    page.go("Models")
    page.sees(".empty", "no model is loaded")
    page.page.get_by_label("name of a model").fill("b")
    page.page.get_by_role("button", name="Load", exact=True).click()
    page.sees(".said", "b: loaded")
    table = page.page.get_by_role("region", name="Models on demand")
    machine.until(lambda: "ready" in table.inner_text())
    assert [row["component"] for row in machine.ps() if row["component"] not in ("Frontend", "Processor")]
    page.page.get_by_label("name of a model").fill("unknown-model")
    page.page.get_by_role("button", name="Load", exact=True).click()
    page.sees(".said.bad", "unknown-model")
    page.page.get_by_role("button", name="Unload b").click()
    page.page.locator("dialog[open]").get_by_role("button", name="Unload").click()
    page.sees(".empty", "no model is loaded")
    assert page.find() == []
    assert [text for text in page.errors if "404" not in text] == []


def test_a_worker_changes_its_role_and_a_pool_is_drained(machine: Any, browse: Callable[..., Any]) -> None:
    url = serve(machine, "--Worker.ServiceArgs.workers=2", ADMIN).ready()
    machine.until(lambda: all(row["role"] for row in machine.ps() if "Worker" in row["component"]))
    page = browse()
    page.open(url)
    page.go("Workers")
    page.sees("td a", "PrefillWorker.0").click()
    act(page, "Switch to decode")
    machine.until(lambda: machine.row("PrefillWorker")["role"] == "decode")
    page.sees("button", "Switch to prefill")
    act(page, "Switch to prefill")
    machine.until(lambda: machine.row("PrefillWorker")["role"] == "prefill")
    act(page, "Drain")
    machine.until(lambda: not [row for row in machine.ps("PrefillWorker") if row["state"] == "Ready"])
    assert machine.chat(url, "hello", max_tokens=5), "the other workers compute prompts"
    assert page.errors == []


def test_adapters_are_loaded_and_unloaded(machine: Any, browse: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")
    write_adapter(tmp_path / "one.gguf", 1)
    words = ("in=http", "out=llamacpp", "sample.gguf", "--http-port=0", "--allow-runtime-lora-updating")
    command = machine.start("dynamo-run", *words, f"--lora-dir={tmp_path}", cwd=ROOT, OMP_NUM_THREADS="1")
    page = browse()
    page.open(command.ready())
    page.go("Models")
    page.sees(".empty", "no adapter is loaded")
    page.page.get_by_label("path").fill("nothing.gguf")
    page.page.get_by_label("name", exact=True).fill("one")
    page.page.get_by_role("button", name="Load adapter").click()
    page.sees(".said.bad", "nothing.gguf")
    page.page.get_by_label("path").fill("one.gguf")
    page.page.get_by_role("button", name="Load adapter").click()
    page.sees(".said", "one: loaded")
    table = page.page.get_by_role("region", name="Adapters")
    machine.until(lambda: "sample" in table.inner_text())
    page.page.get_by_role("button", name="Unload one").click()
    page.page.locator("dialog[open]").get_by_role("button", name="Unload").click()
    page.sees(".empty", "no adapter is loaded")
    assert page.find() == []
