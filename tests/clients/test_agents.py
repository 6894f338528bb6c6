"""Agents in the terminal with their defaults: each reads a file by its shell tool and says what the file has.

The model is a script behind the parser and the template of the sample model, and where llama.cpp is there, also a model
of llama.cpp whose weights say the same. The packages of the agents have 1.1 GB.
"""

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import dynamod.sample
from tests.clients.agents.scripted import ANSWER
from tests.clients.agents.weights import scripted_weights
from tests.clients.conftest import installed
from tests.e2e.conftest import SLOW, Machine

pytestmark = pytest.mark.heavy

HERE = Path(__file__).parent / "agents"
CONTEXT = 400_000
"""Tokens: the requests of agents have some 43,000 of the sample's tokenizer."""
LIMIT_S = 150.0
"""Seconds for one agent."""
QUESTION = "What does answer.txt say?"
CLEARED = ("OPENAI_", "ANTHROPIC_", "CLAUDE", "CODEX", "OPENCODE", "QWEN", "AIDER_", "PYTHON", "VIRTUAL_ENV", "XDG_")
"""Beginnings of variables that agents must not see."""
AIDER = ("uv", "tool", "run", "--python", "3.11", "--from", "aider-chat==0.86.2", "aider")


@dataclass(frozen=True)
class Agents:
    """The commands of the agents, and where the model is. `folder`: with answer.txt."""

    programs: Path
    url: str
    folder: Path

    def run(self, *words: str, **env: str) -> str:
        """Run an agent to its end; what it printed."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
        folder = self.folder / "work"
        clean = {**kept, "HOME": str(home), "NO_COLOR": "1", "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
        clean["PWD"] = str(folder)  # opencode looks there for its file, wherever it runs
        done = subprocess.run(
            words,
            cwd=folder,
            env={**clean, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def program(self, name: str) -> str:
        """The command of an agent of the npm packages."""
        return str(self.programs / "node_modules/.bin" / name)


def long_model(folder: Path) -> Path:
    """The sample model without weights and with a long context."""
    source = Path(dynamod.sample.__file__).parent / "hf"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: CONTEXT}))
    return folder


@pytest.fixture(scope="module", params=["script", "llamacpp"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A frontend with the scripted model: its URL, and a folder."""
    if request.param == "llamacpp" and importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs the extra llama_cpp")
    machine = Machine()
    try:
        if request.param == "llamacpp":
            engine = ("out=llamacpp", scripted_weights(machine.folder / "scripted.gguf"))
        else:
            engine = (f"out=pytok:{HERE / 'scripted.py'}", "--model-path", long_model(machine.folder / "long"))
        words = ("in=http", *engine, "--model-name", "scripted", "--http-port", 0)
        url = machine.start("dynamo-run", *words).ready(SLOW)
        work = machine.folder / "work"
        work.mkdir()
        (work / "answer.txt").write_text("42\n")
        yield url, machine.folder
    finally:
        machine.close()


@pytest.fixture(scope="module")
def agents(served: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Agents:
    """The agents of npm."""
    url, folder = served
    return Agents(installed(HERE, tmp_path_factory.mktemp("agents"), seconds=300), url, folder)


def test_codex(agents: Agents) -> None:
    provider = f'{{name="dynamod",base_url="{agents.url}/v1",wire_api="responses"}}'
    said = agents.run(
        *(agents.program("codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("-m", "scripted", "-c", "model_provider=dynamod", "-c", f"model_providers.dynamod={provider}", QUESTION),
    )
    assert said.strip().endswith(ANSWER)


def test_claude_code(agents: Agents) -> None:
    said = agents.run(
        *(agents.program("claude"), "-p", QUESTION, "--allowedTools", "Bash"),
        ANTHROPIC_BASE_URL=agents.url,
        ANTHROPIC_MODEL="scripted",
        ANTHROPIC_SMALL_FAST_MODEL="scripted",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        IS_SANDBOX="1",
    )
    assert said.strip() == ANSWER


def test_qwen_code(agents: Agents) -> None:
    words = (agents.program("qwen"), "-y", "-p", QUESTION)
    said = agents.run(*words, OPENAI_BASE_URL=f"{agents.url}/v1", OPENAI_MODEL="scripted")
    assert said.strip().endswith(ANSWER)


def test_opencode(agents: Agents) -> None:
    options = {"baseURL": f"{agents.url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "dynamod", "options": options, "models": {"scripted": {}}}
    config = {
        "provider": {"dynamod": provider},
        "model": "dynamod/scripted",
        "small_model": "dynamod/scripted",
        "permission": "allow",
        "autoupdate": False,
    }
    (agents.folder / "work/opencode.json").write_text(json.dumps(config))
    said = agents.run(agents.program("opencode"), "run", QUESTION)
    assert said.strip().endswith(ANSWER)


def test_aider(served: tuple[str, Path]) -> None:
    """Its tool is the edit of a file, which the model writes as text."""
    if shutil.which("uv") is None or importlib.util.find_spec("tokenizers") is None:
        pytest.skip("needs uv")
    url, folder = served
    agents = Agents(folder, url, folder)
    cache = subprocess.run(["uv", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        agents.run(*AIDER, "--version", UV_CACHE_DIR=cache)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"uv could not install aider: {str(error)[-200:]}")
    file = folder / "work/edited.txt"
    file.write_text("42\n")
    agents.run(
        *(*AIDER, "--model", "openai/scripted", "--yes-always", "--no-show-model-warnings", "--no-check-update"),
        *("--no-git", "--analytics-disable", "--no-pretty", "--edit-format", "diff"),
        *("--message", "Change 42 to 43 in edited.txt", "edited.txt"),
        OPENAI_API_BASE=f"{url}/v1",
        UV_CACHE_DIR=cache,
    )
    assert file.read_text() == "43\n"
