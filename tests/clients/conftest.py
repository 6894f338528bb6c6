"""One `dynamo serve` per engine for all clients, and their programs: each is run once, with all its flows."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SLOW, Machine

HERE = Path(__file__).parent
LIMIT = 90.0
"""Seconds for a program: all its flows, and the import of its libraries."""
NEEDED = {
    "openai_sdk": ("openai",),
    "openai_agents": ("agents",),
    "anthropic_sdk": ("anthropic",),
    "ollama_client": ("ollama",),
    "langchain_agent": ("langchain", "langchain_openai", "langgraph"),
    "instructor_modes": ("instructor",),
    "pydantic_ai_agent": ("pydantic_ai",),
    "llamaindex_agent": ("llama_index",),
}
"""Modules of each program's libraries."""


@dataclass(frozen=True)
class Served:
    """An engine behind the frontend. `choice`: whether its model has to be told to call tools, or does so."""

    engine: str
    url: str
    choice: str

    @property
    def words(self) -> list[str]:
        """What a program is told."""
        return [self.url, "sample", self.choice]


HEAVY = ("vllm", "sglang")
"""Engines in environments of their own, which a variable names."""
LITTLE = {"vllm": ("--Worker.engine_args.kv_cache_memory_bytes=200000000",), "sglang": ()}
"""For little memory."""


@pytest.fixture(
    scope="session", params=["mocker", "llamacpp", *(pytest.param(name, marks=pytest.mark.heavy) for name in HEAVY)]
)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """The graph of the README, with an engine that keeps to grammars."""
    engine, seconds = request.param, SLOW
    own: tuple[str, ...]
    if engine == "mocker":  # noise as text, and as fast as it goes; it never calls on its own
        own, choice = ("--Worker.engine_args.speedup_ratio=0",), "required"
    elif engine in HEAVY:
        if not (python := os.environ.get(variable := f"DYNAMOD_TEST_{engine.upper()}_PYTHON", "")):
            pytest.skip(f"{variable} names no python of an environment with {engine}")
        own, choice, seconds = (f"--Worker.ServiceArgs.python={python}", *LITTLE[engine]), "auto", 300.0
    elif importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs the extra llama_cpp")
    else:
        own, choice = ("--Common.model=sample.gguf",), "auto"
    machine = Machine()
    try:
        words = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", f"--Worker.engine={engine}", *own)
        url = machine.start("dynamo", *words, "--Frontend.port=0", OMP_NUM_THREADS="1").ready(seconds)
        machine.until(lambda: machine.serves(url))
        yield Served(engine, url, choice)
    finally:
        machine.close()


Run = Callable[[str], dict[str, Any]]
"""`run(program)`: what came of each flow of a program."""


@pytest.fixture(scope="session")
def wanted(request: pytest.FixtureRequest) -> set[str]:
    """The programs of the tests that have been chosen: each test has its own as parameter."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return {one["program"] for one in parameters if "program" in one}


@pytest.fixture(scope="session")
def run(served: Served, wanted: set[str]) -> Iterator[Run]:
    """For the programs in Python; those whose packages are missing are skipped."""
    missing = {
        name: [one for one in needed if importlib.util.find_spec(one) is None] for name, needed in NEEDED.items()
    }
    words = {
        name: [sys.executable, str(HERE / "programs" / f"{name}.py")]
        for name in wanted & {*NEEDED}
        if not missing[name]
    }
    with started(words, served) as found:

        def run(name: str) -> dict[str, Any]:
            if missing[name]:
                pytest.skip(f"needs {', '.join(missing[name])} of requirements.txt")
            return found(name)

        yield run


@pytest.fixture(scope="session")
def node(served: Served, node_folder: Path, wanted: set[str]) -> Iterator[Run]:
    """For the programs for Node."""
    names = wanted - {*NEEDED}
    with started({name: ["node", str(node_folder / f"{name}.mjs")] for name in names}, served) as found:
        yield found


@contextmanager
def started(programs: dict[str, list[str]], served: Served) -> Iterator[Run]:
    """Run programs, two at a time: mostly they import their libraries."""
    with ThreadPoolExecutor(2) as pool:
        found = {name: pool.submit(flows, [*words, *served.words]) for name, words in programs.items()}
        yield lambda name: found[name].result()
        for one in found.values():
            one.cancel()


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs with their packages."""
    return installed(HERE / "node", tmp_path_factory.mktemp("node"))


def installed(source: Path, folder: Path, seconds: float = 120.0) -> Path:
    """A copy of a folder with the packages of its package.json; one install for all. Skips where npm cannot."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    words = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
    try:
        done = subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not installed the packages within {seconds:g} s")
    if done.returncode:
        pytest.skip(f"npm could not install the packages: {done.stderr[-300:]}")
    return folder


def flows(words: list[str]) -> dict[str, Any]:
    """Run a program to its end; its flows by name, as `value` or `error`."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENAI_", "ANTHROPIC_"))
    }
    clean |= {"ANONYMIZED_TELEMETRY": "false", "LANGSMITH_TRACING": "false", "NO_COLOR": "1"}
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["flow"]: line for line in lines}
