"""numpy is imported without threads of its own."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine
CODE = """
import os, sys
from dynamod.engine.llamacpp.arrays import THREADS, np
np.ones((300, 300)) @ np.ones((300, 300))
print(len(os.listdir("/proc/self/task")), os.environ.get(THREADS))
"""


@pytest.mark.parametrize("given", [None, "2"])
def test_linear_algebra_makes_no_threads_unless_they_are_asked_for(given: str | None) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    if given is not None:
        environ["OPENBLAS_NUM_THREADS"] = given
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, env=environ)
    threads, known = done.stdout.split()
    assert known == str(given), done.stderr
    assert int(threads) == 1 or given is not None
