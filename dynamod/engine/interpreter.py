"""Another Python interpreter for a component process: whether it has this dynamod, and what an engine needs.

Engines like vLLM pin the versions of what they need, so people keep each in an environment of its own.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

from dynamod import __version__
from dynamod.message.errors import UserError
from dynamod.message.install import origin

FLAG = "--python, ServiceArgs.python"
TIMEOUT = 60.0
"""Seconds for it to answer: a cold disk and a large environment take their time."""

_PROBE = """
import importlib.util, json, sys
from dynamod import __version__
if __version__ == sys.argv[1]:
    import dynamod.runtime.host
print(json.dumps([__version__, [name for name in sys.argv[2:] if importlib.util.find_spec(name) is None]]))
"""
"""Of another version only the number is wanted. The host is what a process imports first, with all it depends on."""


def missing(python: str, modules: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Which of `modules` the interpreter lacks. `environ`: of its processes.

    Raises UserError when there is no such interpreter, or it has no dynamod of this version.
    """
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, __version__, *modules],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise _wrong(python, f"does not answer within {TIMEOUT:g} s", f"try {python} --version") from None
    except OSError as error:
        hint = f"name the python of an environment, where {installs(python)} has run"
        raise _wrong(python, f"cannot be started: {error.strerror}", hint) from None
    lines = done.stdout.decode(errors="replace").splitlines()
    try:
        version, lacking = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise _wrong(python, f"has no dynamod that can be imported ({said[-1]})", installs(python)) from None
    if version != __version__:
        raise _wrong(python, f"has dynamod {version}, and this is {__version__}", installs(python))
    return list(lacking)


def installs(python: str) -> str:
    """The command that installs this version of dynamod there."""
    return f"{python} -m pip install {origin()}"


def _wrong(python: str, problem: str, hint: str) -> UserError:
    return UserError(f"the interpreter {python} ({FLAG}) {problem}", hint, exit_code=3)
