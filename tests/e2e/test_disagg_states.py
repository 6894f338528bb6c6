"""Prefill and decode workers with models that hand off whole states: the bits of one worker, also behind a crash."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..state_models import recurrent, windowed
from .disagg import LONG, answers, handoffs, serve, sessions

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

PROMPTS = 24
EXACT: dict[str, Any] = {
    "flash_attn": "on",
    "split_tail": True,
    "swa_full": False,
    "n_threads": 1,
    "step_seconds": 60.0,
}
"""Without flash attention the sums of a window depend on where its cells lie, which an import does not keep."""


def served(machine: Any, path: Path, *flags: str) -> Any:
    names = (f"--Worker.model={path}", f"--PrefillWorker.model={path}")
    return serve(machine, *names, *flags, engine="llamacpp", arguments=EXACT, DYNAMOD_HEARTBEAT_TIMEOUT="20")


def alone(machine: Any, path: Path, ask: Callable[[str], Any]) -> Any:
    """What a worker answers that computes all itself."""
    command = served(machine, path, "--Processor.remote-prefill=false", "--name=alone")
    found = ask(command.ready())
    command.end()
    return found


@pytest.mark.parametrize("make", [recurrent, windowed])
def test_the_answers_are_those_of_one_worker(machine: Any, make: Callable[[Path], Path]) -> None:
    path = make(machine.folder / "m.gguf")
    expected = alone(machine, path, lambda url: answers(machine, url, PROMPTS))
    assert len({text for text, *_ in expected}) > PROMPTS // 2, "prompts make a difference"
    url = served(machine, path).ready()
    assert answers(machine, url, PROMPTS) == expected
    reader, source = handoffs(machine), sessions(machine)
    assert (reader["transfers"], reader["blocks"], reader["failed"]) == (PROMPTS, PROMPTS, 0), reader
    assert reader["saved_milliseconds"] > 0, reader
    assert (source["open"], source["read"], source["expired"]) == (0, PROMPTS, 0), source


def test_a_prefill_worker_that_is_killed_before_the_state_is_there(machine: Any) -> None:
    path = recurrent(machine.folder / "m.gguf", width=512, layers=6)
    fields = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}
    prompt = f"{LONG} {LONG} {LONG}"
    expected = alone(machine, path, lambda url: machine.chat(url, prompt, **fields))
    url = served(machine, path).ready()
    begun = machine.begin(url, prompt, request="r1", **fields)
    machine.until(lambda: sessions(machine)["open"] == 1)
    os.kill(machine.row("PrefillWorker")["pid"], signal.SIGKILL)
    assert begun.answer()["choices"][0]["message"]["content"] == expected
    reader = handoffs(machine)
    assert (reader["transfers"], reader["blocks"], reader["failed"]) == (0, 0, 1), reader
    machine.until(lambda: sessions(machine)["opened"] == 0)  # the next one is there
    machine.until(lambda: machine.chat(url, f"again {prompt}", **fields) and handoffs(machine)["transfers"])
