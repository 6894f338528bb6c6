"""How commands end when somebody is in a hurry."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
from dynamod.cli.main import guarded

class Late:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

def main(argv):
    class Made:
        late = Late()
    return 0

raise SystemExit(guarded(main, []))
"""


def test_ctrl_c_while_a_class_is_made() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("command", ["dynamo", "dynamod", "dynamo_run", "frontend"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("DYN_LOG", "loud"), ("DYN_LOG", "dynamod.router=loud"), ("DYN_LOGGING_CONFIG_PATH", "/no/where.toml")],
)
def test_log_settings_that_cannot_be_read(command: str, name: str, value: str) -> None:
    """Also for a command that writes no log line: its daemon and its processes would."""
    program = f"import sys; sys.argv[1:] = ['--version']; from dynamod.cli.main import {command}; {command}()"
    environ = {**os.environ, "DYN_LOG": "", name: value}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=environ)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"error: {name}" in done.stderr
    assert ("error, warn, info, debug, trace" in done.stderr) == (name == "DYN_LOG")
