"""The README does what it says: every command in it is run, and what it shows is what is printed."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.packaged import PACKAGED

from .manual_page import blocks_of
from .shell import Shell, content, joined, needs_curl, plain

ROOT = Path(__file__).parents[2]
FIRST = "uv run --extra mistralrs dynamo serve graphs.agg:Frontend -f configs/agg.yaml"
TESTS = "uv run pytest"
ACTIVATE = "source .venv/bin/activate"

OURS = ("dynamo", "dynamod", "dynamo-run", "uv", "python", "python3", "pip", "source", "curl")
"""First words of what is a command, also in the middle of a sentence."""
NAMES = {"dynamod", "dynamod-llm", "dynamo-run", "dynamo serve", "dynamo explain"}
"""Commands that are spoken of, not given."""
SERVING = (
    "dynamo-run in=http out=mistralrs sample",
    "dynamo serve -f configs/agg_router.yaml",
    "dynamo serve hello:Frontend",
    "dynamo-run in=http out=pystr:my_chat.py",
)
LOOKING = ("dynamo ps", "dynamo top")
INFRA = "uv run --extra infra dynamo infra up"
DOCTOR = "dynamo doctor"
INLINE = {
    ACTIVATE: "test_the_environment_of_uv_has_the_commands",
    TESTS: "that is us",
    "dynamo-run sample": "needs a terminal: test_chat.py talks to it",
    **dict.fromkeys((*SERVING, *LOOKING, INFRA, DOCTOR), "test_what_to_do_next"),
}
"""Commands in a sentence that stand in no block: where they are run, or why they are not."""


def blocks(kind: str) -> dict[str, list[str]]:
    """Fenced blocks of a kind, by the heading they stand under."""
    found: dict[str, list[str]] = {}
    heading, inside, lines = "", "", list[str]()
    for line in (ROOT / "README.md").read_text().splitlines():
        if inside:
            if line == "```":
                if inside == kind:
                    found.setdefault(heading, []).append("\n".join(lines))
                inside = ""
            else:
                lines.append(line)
        elif line.startswith("```"):
            inside, lines = line[3:] or "none", []
        elif line.startswith("## "):
            heading = line[3:]
    return found


def inline() -> set[str]:
    """What stands between backquotes in a sentence and begins like a command."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = {" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)}
    return {span for span in spans if span.split()[0] in OURS}


def spoken(text: str) -> str:
    """A command that stands in a sentence."""
    assert text in inline()
    return text


def commands(heading: str) -> list[str]:
    """The shell commands under a heading, one per line (a backslash joins lines), without comments behind them."""
    return joined("\n".join(blocks("bash")[heading]))


@pytest.fixture
def shell(machine: Any) -> Callable[[Path], Shell]:
    return lambda folder: Shell(machine, folder)


def lasting(answer: str) -> dict[str, Any]:
    """Of an answer what is the same every time."""
    return {key: value for key, value in json.loads(answer).items() if key not in ("id", "created")}


@needs_curl
@pytest.mark.engine
def test_run_it(shell: Callable[[Path], Shell]) -> None:
    pytest.importorskip("mistralrs")
    _, first, ask, *_ = commands("Run it")
    ask_streaming = ask.removesuffix("}'") + ', "stream": true}\''
    assert first == FIRST
    here = shell(ROOT)
    printed = {plain(line) for line in here.run(first).splitlines()}
    (shown,) = blocks("text")["Run it"]
    tables = (
        "Added new completions model sample",
        "| MODEL TYPE | MODEL NAME | NAMESPACE | COMPONENT | ENDPOINT |",
        "| chat | sample | dynamo | Processor | chat/completions |",
        "| completions | sample | dynamo | Processor | completions |",
    )
    assert {plain(line) for line in [*shown.splitlines(), *tables]} == printed

    answer = here.run(ask)
    assert content(answer) == "The capital of South Africa is Pretoria."
    shown = blocks("json")["Run it"][0]
    assert lasting(shown) == lasting(answer)

    events = [line for line in here.run(ask_streaming).splitlines() if line]
    assert all(line.startswith("data: ") for line in events)
    assert events.pop() == "data: [DONE]"
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "The capital of South Africa is Pretoria."
    # Twelve tokens may all be there before a busy machine has opened the stream; a long answer comes in pieces.
    longer = ask_streaming.replace("What is the capital of South Africa?", "Count from 1 to 200.").replace(
        "100", "1500"
    )
    long = here.run(longer)
    assert long.count('"content":') > 4, "it comes in pieces"


@needs_curl
@pytest.mark.engine
@pytest.mark.real
@pytest.mark.skipif(PACKAGED["smollm2"].path is None, reason="needs the extra demo")
def test_run_it_with_a_real_model(shell: Callable[[Path], Shell]) -> None:
    pytest.importorskip("mistralrs")
    *_, serve, ask = commands("Run it")
    assert serve == f"{FIRST.replace('--extra', '--extra demo --extra', 1)} --Worker.model=smollm2"
    here = shell(ROOT)
    here.run(serve)
    shown, answer = json.loads(blocks("json")["Run it"][1]), json.loads(here.run(ask))
    words = content(json.dumps(answer))
    assert "sea" in words.lower(), words
    assert words.endswith("."), words
    # Floats differ between processors, and with them perhaps the greedy text: the rest is the same.
    for one in (shown, answer):
        assert len(one["choices"][0]["message"].pop("content")) > 30
        assert one["usage"].pop("total_tokens") == 37 + one["usage"].pop("completion_tokens")
    assert lasting(json.dumps(shown)) == lasting(json.dumps(answer))


def test_the_line_that_brings_uv(tmp_path: Path) -> None:
    """It is run with a folder of packages instead of a registry: a small package is called uv there."""
    pytest.importorskip("ensurepip")
    line, *_ = commands("Run it")
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {Path(sys.base_prefix) / "bin/python3"} "$@"\n')
    python.chmod(0o755)
    with zipfile.ZipFile(tmp_path / "uv-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("uv.py", "def main(): print('this is uv')\n")
        wheel.writestr("uv-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 1\n")
        wheel.writestr("uv-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("uv-1.dist-info/entry_points.txt", "[console_scripts]\nuv = uv:main\n")
        wheel.writestr("uv-1.dist-info/RECORD", "")
    env = {"HOME": str(tmp_path), "PATH": f"{python.parent}:/usr/bin:/bin"}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(["bash", "-c", f"{line} && uv"], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "this is uv", done.stdout + done.stderr


def test_the_environment_of_uv_has_the_commands() -> None:
    if not (ROOT / ".venv/bin/activate").is_file():
        pytest.skip("this checkout has no .venv")
    done = subprocess.run(["bash", "-c", f"{spoken(ACTIVATE)} && command -v dynamo-run"], cwd=ROOT, capture_output=True)
    assert Path(done.stdout.decode().strip()) == ROOT / ".venv/bin/dynamo-run"


@pytest.mark.engine
def test_what_to_do_next(shell: Callable[[Path], Shell], machine: Any) -> None:
    """What the commands do further is in the tutorials: test_tutorials.py."""
    pytest.importorskip("mistralrs")
    for page in ("own-graph", "own-engine"):
        for block in blocks_of((ROOT / f"docs/tutorials/{page}.md").read_text()):
            if block.title:
                (machine.folder / block.title).write_text(block.text + "\n")
    here = shell(machine.folder)
    for line in SERVING:
        here.run(spoken(line))
        for look in LOOKING:
            assert here.run(spoken(look))
        here.last.end()
    try:
        assert "etcd is healthy" in here.run(spoken(INFRA))
        here.run(SERVING[1])
        assert "ok   etcd: " in here.run(spoken(DOCTOR))
    finally:
        here.run("dynamo infra down")


def test_the_test_command_has_what_it_needs() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    development = " ".join(settings["dependency-groups"]["dev"])
    assert "pytest>=" in development
    assert "mistralrs" in development
    assert settings["tool"]["pytest"]["ini_options"]["testpaths"] == ["tests"]
    assert settings["project"]["optional-dependencies"]["mistralrs"]
    assert settings["project"]["scripts"].keys() >= {"dynamo", "dynamod", "dynamo-run"}


def test_no_command_is_left_out() -> None:
    run = {"Run it"}
    assert blocks("bash").keys() == run, "a heading with commands has a test here"
    assert not blocks("sh").keys() | blocks("shell").keys() | blocks("none").keys(), "commands stand in bash blocks"
    every = [line for heading in run for line in commands(heading)]
    assert inline() - NAMES - {*every} == INLINE.keys() - {*every}, "a command in a sentence is run too"
    assert not NAMES & {*every}
    assert FIRST in every


def test_links_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *ROOT.glob("*/README.md"), *ROOT.glob("dynamod/*/README.md")]:
        for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", file.read_text()):
            if "://" in target:
                continue
            found = file.parent / target if target else file
            assert found.exists(), f"{file}: {target}"
            assert not heading or heading in headings(found), f"{file}: {target}#{heading}"


def headings(file: Path) -> set[str]:
    """Headings of a file as links name them."""
    found = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
