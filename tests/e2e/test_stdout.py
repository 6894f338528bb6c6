"""A stdout that lacks letters, and one that takes nothing: no traceback."""

import subprocess
import sys
from typing import Any

import pytest

ENTRY = "from dynamod.cli.main import {0}; {0}()"


def run(machine: Any, entry: str, *words: str, stdout: Any, text: str = "", **env: str) -> Any:
    argv = [sys.executable, "-c", ENTRY.format(entry), *words]
    environ = {**machine.environ(), **env}
    return subprocess.run(
        argv, input=text.encode(), stdout=stdout, stderr=subprocess.PIPE, env=environ, cwd=machine.folder, timeout=60
    )


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "gr?n ? ?"), ("latin-1", "grün ? ?"), ("utf-8", "grün € 🙂")]
)
def test_an_answer_with_letters_that_stdout_lacks(machine: Any, encoding: str, shown: str) -> None:
    done = run(
        *(machine, "dynamo_run", "out=echo_full", "in=stdin"),
        stdout=subprocess.PIPE,
        text="grün € 🙂",
        PYTHONIOENCODING=encoding,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert shown in done.stdout.decode(encoding)
    assert "Traceback" not in done.stderr.decode()


def test_a_command_with_letters_that_stdout_lacks(machine: Any) -> None:
    done = run(machine, "dynamo", "serve", "-f", "configs/agg.yaml", "--dry-run", "--Worker.model=grün",
               stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    ("entry", "word"), [("dynamo", "--help"), ("dynamo", "env"), ("dynamo_run", "--help"), ("dynamod", "--version")]
)
def test_a_full_device_is_one_line(machine: Any, entry: str, word: str, buffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = run(machine, entry, word, stdout=full, PYTHONUNBUFFERED=buffered)
    assert done.returncode == 1
    assert done.stderr.decode() == "error: the output cannot be written: No space left on device\n"


def test_a_reader_that_has_left_gets_no_message(machine: Any) -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = run(machine, "dynamo", "--help", stdout=reader.stdin)
    assert done.stderr == b""
