"""Command lines of NVIDIA Dynamo: each flag and variable is accepted, by the table and by the installed package."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dynamod.cli.arguments import Parser
from dynamod.cli.flags import common_flags, frontend_parser, joined, worker_flags
from dynamod.cli.nvidia import FALSE, INTERACTIVE, MODULES, NAMESPACE, OWN, TRUE, VARIABLE, Entry, accepted, table
from dynamod.cli.worker import OwnFlags
from dynamod.message.errors import UserError

LETTERS = {letter: module for module, letter in MODULES.items() if not module.endswith(".worker")}
VARIABLE_OF_PEER = "DYNAMOD_TEST_DYNAMO_PYTHON"
"""Names a python with the package ai-dynamo."""
_PROGRAM = Path(__file__).with_name("nvidia_flags.py")


def known(module: str) -> list[str]:
    """The flags of the module here, except what an engine's own parser reads."""
    if module == "dynamo.frontend":
        return frontend_parser().flags()
    p = Parser(prog=module, allow_abbrev=False)
    for name in ("--endpoint", "--namespace", "--num-workers"):
        p.add_argument(name)
    worker_flags(p, path=("--model",), name=("--served-model-name",))
    common_flags(p)
    if (engine := module.removeprefix("dynamo.")) in ("mocker", "trtllm"):
        OwnFlags(engine, p)
    return p.flags()


def read(module: str, *words: str, **environ: str) -> tuple[list[str], list[str]]:
    """The words for the parser of this release, and what is told."""
    told: list[str] = []
    return accepted(module, words, known(module), environ, told.append), told


def typed(row: Entry, name: str) -> list[str]:
    """The flag as a user types it."""
    return [name, *{"1": ["1"], "?": ["1"], "*": ["1", "2"]}.get(row.values, [])]


ROWS = [(letter, row) for row in table() for letter in row.modules if row.names]


@pytest.mark.parametrize("letter", [*LETTERS])
def test_each_flag_is_read_or_said_to_have_no_effect(letter: str) -> None:
    module = LETTERS[letter]
    flags = known(module)
    for row in (row for at, row in ROWS if at == letter):
        for name in row.names:
            words, told = read(module, *typed(row, name))
            if row.here in ("", INTERACTIVE):
                assert words == []
                assert told == [f"{name} has no effect here: {row.note}"]
                assert row.note
                continue
            assert told == []
            assert row.here == VARIABLE or words
            assert all(word.partition("=")[0] in flags for word in words if word.startswith("-")), (name, words)


def test_the_table_has_one_row_for_each_flag_of_a_module() -> None:
    seen: set[tuple[str, str]] = set()
    for letter, row in ROWS:
        for name in row.names:
            assert (letter, name) not in seen, name
            seen.add((letter, name))
    for row in table():
        assert row.names or row.variables
        assert {*row.modules} <= {*LETTERS}
        assert row.values in ("1", "?", "*", "switch", "pair") or not row.names
        assert row.here or row.note


@pytest.mark.parametrize(
    ("module", "words", "found"),
    [
        (
            "dynamo.frontend",
            ["--router-mode", "kv", "--no-router-kv-events"],
            ["--router-mode=kv", "--no-use-kv-events"],
        ),
        ("dynamo.frontend", ["--kv-overlap-score-weight", "0.5"], ["--kv-overlap-score-weight=0.5"]),
        ("dynamo.frontend", ["--router_kv_overlap_score_weight=2"], ["--kv-overlap-score-weight=2"]),
        ("dynamo.frontend", ["-i", "--model-name", "m"], ["-i", "--model-name=m"]),
        ("dynamo.frontend", ["--request-plane", "nats", "--http-port", "1"], ["--http-port=1"]),
        ("dynamo.frontend", ["--strip-anthropic-preamble", "false"], ["--strip-anthropic-preamble", "false"]),
        (
            "dynamo.frontend",
            ["--enforce-disagg", "--router-min-initial-workers", "2"],
            ["--enforce-disagg", "--router-min-initial-workers=2"],
        ),
        ("dynamo.frontend", ["--router-ttl-secs=5", "--other", "x"], ["--router-ttl-secs=5", "--other", "x"]),
        (
            "dynamo.mocker",
            ["--is-prefill-worker", "--num-workers", "3"],
            ["--disaggregation-mode=prefill", "--num-workers=3"],
        ),
        ("dynamo.mocker", ["--disaggregation-mode", "agg", "-v"], ["--disaggregation-mode=aggregated", "-v"]),
        ("dynamo.mocker", ["--router-mode", "kv", "sample"], ["sample"]),
        ("dynamo.vllm", ["--namespace", "n", "--connector", "a", "b", "--seed", "1"], ["--namespace=n", "--seed", "1"]),
        ("dynamo.vllm", ["--custom-jinja-template=x"], ["--chat-template=x"]),
        ("dynamo.trtllm", ["--expert-parallel-size", "2"], ["--moe-expert-parallel-size=2"]),
    ],
)
def test_words(module: str, words: list[str], found: list[str]) -> None:
    assert read(module, *words)[0] == found


def test_nothing_is_abbreviated_and_unknown_flags_are_refused() -> None:
    for words in (["--router-m", "kv"], ["--http-por", "1"], ["--http-prot", "1"]):
        with pytest.raises(UserError):
            frontend_parser().parse_args(joined(read("dynamo.frontend", *words)[0]))


def test_variables_of_flags() -> None:
    env = {"DYN_ROUTER_MODE": "kv", "DYN_ROUTER_USE_KV_EVENTS": "0", "DYN_REQUEST_PLANE": "tcp", "DYN_HTTP_PORT": "9"}
    words, told = read("dynamo.frontend", "--http-port", "7", **env)
    assert words == ["--http-port=7", "--router-mode=kv", "--no-use-kv-events"]
    assert len(told) == 1
    assert "DYN_REQUEST_PLANE has no effect here" in told[0]
    assert read("dynamo.vllm", DYN_NAMESPACE="n") == (["--namespace=n"], [])


@pytest.mark.parametrize("text", [*TRUE, *FALSE])
def test_a_variable_of_a_pair_is_true_or_false(text: str) -> None:
    words, _ = read("dynamo.frontend", DYN_ROUTER_CONDITIONAL_DISAGG=text)
    assert words == ["--conditional-disagg" if text in TRUE else "--no-conditional-disagg"]


def test_variables_that_are_read_anyway_become_no_flags() -> None:
    env = {
        "DYN_MIGRATION_LIMIT": "1",
        "DYN_STRIP_ANTHROPIC_PREAMBLE": "0",
        "DYN_METRICS_PREFIX": "x",
        "DYN_LOG": "info",
    }
    assert read("dynamo.frontend", **env, DYN_MINE="x") == ([], [])


def test_each_variable_of_the_table_is_accepted() -> None:
    for row in table():
        for name in row.variables:
            for module in [LETTERS[letter] for letter in row.modules] or ["dynamo.frontend"]:
                words, told = read(module, **{name: "1"})
                assert bool(words) + len(told) <= 1, name
                assert not told or row.note in told[0]
    assert all(name.startswith((OWN, "NATS_", "MODEL_", "SGLANG_")) for row in table() for name in row.variables)


def test_a_prefix_of_metrics_becomes_the_variable() -> None:
    env: dict[str, str] = {}
    assert accepted("dynamo.frontend", ["--metrics-prefix", "mine"], known("dynamo.frontend"), env) == []
    assert env == {"DYN_METRICS_PREFIX": "mine"}
    assert NAMESPACE != VARIABLE


def _peer() -> str:
    if named := os.environ.get(VARIABLE_OF_PEER, ""):
        return named
    try:
        there = find_spec("dynamo.frontend.frontend_args") is not None
    except ImportError:
        there = False
    return sys.executable if there else ""


@pytest.mark.skipif(not _peer(), reason=f"{VARIABLE_OF_PEER} names no python with ai-dynamo")
def test_the_installed_package_has_no_other_flags() -> None:
    done = subprocess.run([_peer(), str(_PROGRAM)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[Any]] = json.loads(done.stdout)
    assert {"dynamo.frontend", "dynamo.mocker"} <= found.keys()
    ours = {(letter, name) for letter, row in ROWS for name in row.names}
    pairs = {(letter, f"--no-{name[2:]}") for letter, row in ROWS if row.values == "pair" for name in row.names}
    for module, flags in found.items():
        missing = [flag for flag in flags if (MODULES[module], flag) not in ours | pairs]
        assert not [flag for flag in missing if not re.fullmatch(r"-h|--help|--version|-v", flag)], module
