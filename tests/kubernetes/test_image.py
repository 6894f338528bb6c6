"""The Containerfile by hadolint, which `run_real.sh` installs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .control_plane import FOLDER

FILE = Path(__file__).parents[2] / "deploy/Containerfile"


def lint(text: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("hadolint") or shutil.which("hadolint", path=os.environ.get(FOLDER, ""))
    if found is None:
        pytest.skip("no hadolint here: tests/kubernetes/run_real.sh installs it")
    return subprocess.run([found, "-"], input=text, capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_finds_nothing() -> None:
    done = lint(FILE.read_text())
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_finds_what_is_wrong() -> None:
    done = lint(FILE.read_text().replace("USER 10001", "USER root"))
    assert done.returncode == 1
    assert "DL3002" in done.stdout
