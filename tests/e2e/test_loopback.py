"""`dynamo-run` without clients, on machines with one loopback address, or without any: in network namespaces."""

import shutil
import subprocess
import sys
from typing import Any

import pytest

ENTRY = "from dynamod.cli.main import dynamo_run; dynamo_run()"
UP = "ip link set lo up && "


def _may_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-n", "sh", "-c", f"{UP} true"], capture_output=True).returncode == 0


needs_namespace = pytest.mark.skipif(not _may_unshare(), reason="no network namespace can be made here (needs root)")


def run(machine: Any, setup: str, *words: str, text: str = "hello") -> subprocess.CompletedProcess[str]:
    shell = ["unshare", "-n", "sh", "-c", f'{setup} exec "$@"', "sh", sys.executable, "-c", ENTRY, *words]
    return subprocess.run(
        shell, input=text, env=machine.environ(), cwd=machine.folder, capture_output=True, text=True, timeout=60
    )


@needs_namespace
@pytest.mark.parametrize("removed", ["ip addr del 127.0.0.1/8 dev lo", "ip -6 addr del ::1/128 dev lo"])
def test_one_loopback_address_is_enough(machine: Any, removed: str) -> None:
    done = run(machine, f"{UP} {removed} &&", "in=stdin", "out=echo_full")
    assert (done.returncode, done.stdout.strip()) == (0, "hello"), done.stderr
    (machine.folder / "prompts.jsonl").write_text('{"text": "one"}\n')
    done = run(machine, f"{UP} {removed} &&", "in=batch:prompts.jsonl", "out=echo_full")
    assert done.returncode == 0, done.stderr
    assert '"one"' in (machine.folder / "prompts.output.jsonl").read_text()


@needs_namespace
def test_no_loopback_is_one_line_at_once(machine: Any) -> None:
    done = run(machine, "", "in=stdin", "out=echo_full")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: this machine has no loopback address: neither 127.0.0.1 nor ::1 takes connections; "
        "bring the loopback interface up (`ip link set lo up`), or serve with in=http\n"
    )
