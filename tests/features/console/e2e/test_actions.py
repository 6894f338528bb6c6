"""What the console changes, at real processes: models on demand, roles of workers, a drain, adapters."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from dynamod.preprocess.locate import locate
from tests.adapters import write_adapter
from tests.e2e.conftest import ROOT
from tests.e2e.disagg import serve
from tests.hub import Hub

from .conftest import LOOKS
from .test_browser import ADMIN, KEYS, act

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


@pytest.mark.engine
def test_a_chat_keeps_to_a_schema(machine: Any, browse: Callable[..., Any]) -> None:
    pytest.importorskip("mistralrs")
    url = machine.start("dynamo-run", "in=http", "out=mistralrs", "sample", "--http-port=0", cwd=ROOT).ready()
    page = browse()
    page.open(url)
    page.go("Chat")
    page.page.get_by_text("More").first.click()
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    page.page.get_by_label("JSON Schema of the answer").first.fill(json.dumps(schema | {"additionalProperties": False}))
    page.page.fill("#prompt", "Which city?")
    page.page.keyboard.press("Enter")
    page.sees(".meter div", "finish").filter(has_text="stop").wait_for()
    assert json.loads(page.page.locator(".said.model > p").inner_text())["city"] in ("Rome", "Oslo")
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


def test_a_model_is_pulled(machine: Any, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    files = {file.name: file.read_bytes() for file in locate("sample").iterdir()}
    size = f"{sum(map(len, files.values())) / 2**20:.1f} MiB"
    with Hub({"org/toy": files}, speed=200_000).running() as hub:
        machine.env.update(HF_ENDPOINT=hub.url, HF_HOME=str(machine.folder / "hf"), RAYON_NUM_THREADS="1")
        words = ("in=http", "out=echo_core", "sample", "--http-port=0", "--ollama-manage-models")
        url = machine.start("dynamo-run", *words, cwd=ROOT).ready()
        pages = {look: browse(look) for look in LOOKS}
        for page in pages.values():
            page.open(url)
            page.go("Models")
        page = pages["light"]
        pull(page, "org/nothing")
        page.sees("p.bad", "was not found on Hugging Face")
        pull(page, "org/toy")
        first = shown(page, size)
        machine.until(lambda: shown(page, size) > first)
        assert first < page.page.locator(".pull progress").evaluate("(one) => one.value / one.max") < 1
        page.go("Workers")  # the download continues
        page.go("Models")
        before = shown(page, size)
        page.shoot("console-pull-light")
        assert page.find() == []
        page.page.get_by_role("button", name="Stop").click()
        page.sees("p.bad", "stopped; what has come of org/toy is kept")
        for look in ("dark", "narrow"):
            pull(pages[look], "org/toy")
            assert shown(pages[look], size) >= before / 2, "the download continues where it stopped"
            pages[look].shoot(f"console-pull-{look}")
            assert pages[look].find() == []
            pages[look].page.get_by_role("button", name="Stop").click()
            pages[look].sees("p.bad", "stopped")
        hub.speed = 1e9
        pull(page, "org/toy")
        page.sees("p.good", "org/toy is on this machine")
        assert page.page.locator(".pull").count() == 0
        assert {path.name for path in (machine.folder / "hf/hub/models--org--toy/snapshots").rglob("*.*")} >= {*files}
        assert [error for page in pages.values() for error in page.errors] == []


def pull(page: Any, model: str) -> None:
    page.page.get_by_label("repository of a model").fill(model)
    page.page.keyboard.press("Enter")


def shown(page: Any, size: str) -> float:
    """The share of a download that is here, as its line says."""
    text = page.sees(".pull", f" of {size}, ").inner_text()
    found = re.search(rf"([\d.]+) MiB of {re.escape(size)}, (\d+) %", text)
    assert found, text
    return int(found[2]) / 100


def test_keys_and_batches_are_shown(machine: Any, browse: Callable[..., Any]) -> None:
    keys = machine.folder / "keys.yaml"
    keys.write_text(KEYS.replace("guest-key-00", "guest-key-00, rpm: 1, tpm: 6000, inflight: 2"))
    keys.chmod(0o600)
    file = machine.folder / "graph.yaml"
    file.write_text(BATCHES.format(folder=machine.folder / "kept", keys=keys))
    url = machine.start("dynamo", "serve", "-f", file).ready()
    client = machine.closing(openai.OpenAI(base_url=f"{url}/v1", api_key="guest-key-00", max_retries=0, timeout=10))
    boss = machine.closing(openai.OpenAI(base_url=f"{url}/v1", api_key="boss-key-000", max_retries=0, timeout=10))
    pages = {look: browse(look) for look in LOOKS}
    for page in pages.values():
        page.page.goto(url)
        page.page.fill("input[name=key]", "boss-key-000")
        page.page.keyboard.press("Enter")
        page.sees(".connection.live")
        page.go("Keys and batches")
        page.sees(".empty", "no batch")
    rows = [batch_line(number) for number in range(200)]
    wrong = boss.files.create(file=("in.jsonl", "\n".join([*rows[:2], '{"custom_id": "cut']).encode()), purpose="batch")
    boss.batches.create(input_file_id=wrong.id, endpoint="/v1/chat/completions", completion_window="24h")
    given = boss.files.create(file=("in.jsonl", "\n".join(rows).encode()), purpose="batch")
    batch = boss.batches.create(input_file_id=given.id, endpoint="/v1/chat/completions", completion_window="24h")
    client.chat.completions.create(model="sample", messages=[{"role": "user", "content": "hello"}], max_tokens=9)
    page = pages["light"]
    guest = page.page.locator("tr", has=page.page.get_by_role("cell", name="guest", exact=True))
    machine.until(lambda: re.search(r"0 / 2\s+1 / 1\s+\d+ / 6000\s+1\s", guest.inner_text()))
    seen = page.page.locator("tr", has=page.page.get_by_title(batch.id))
    machine.until(lambda: re.search(r"in_progress.*\b[1-9]\d* / 200", seen.inner_text(), re.DOTALL))
    page.sees("td", "2 / 3")
    for look, page in pages.items():
        page.sees("td", "in_progress")
        page.shoot(f"console-keys-{look}")
        assert page.find() == []
    boss.batches.cancel(batch.id)
    pages["light"].sees("td .state", "cancel")
    assert [error for page in pages.values() for error in page.errors if "401" not in error] == []


BATCHES = """
graph: graphs.agg:Frontend
Frontend: {{port: 0, batches_dir: {folder}, batches_inflight: 4, client_keys_file: {keys}}}
Worker: {{engine: mocker, model: sample, engine_args: {{speedup_ratio: 1, block_size: 16}}}}
"""


def batch_line(number: int) -> str:
    body = {"messages": [{"role": "user", "content": f"tell {number}"}], "max_tokens": 50, "ignore_eos": True}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


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
