"""An older release of dynamod, from the history of the checkout, with the libraries of this environment."""

import functools
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEFORE_PROTOCOLS = "151f645"
"""The last commit that was in use before daemons and commands had a protocol number."""

LAST_RELEASE = "faf1caaf"
"""What nodes run that are upgraded one after the other; protocol 1, as it had no number."""


@functools.cache
def checkout(commit: str) -> tempfile.TemporaryDirectory[str]:
    """The files of a commit in a folder; kept until the process ends. Skips the test where the history is cut off."""
    folder = tempfile.TemporaryDirectory(prefix="dm-old-")
    archive = Path(folder.name) / "archive.tar"
    with archive.open("wb") as file:
        done = subprocess.run(["git", "-C", str(ROOT), "archive", commit], stdout=file, stderr=subprocess.PIPE)
    if done.returncode:
        pytest.skip(f"commit {commit} is not in this checkout: {done.stderr.decode().strip()}")
    with tarfile.open(archive) as files:
        files.extractall(folder.name, filter="data")
    return folder


def environment(commit: str) -> dict[str, str]:
    """Variables with which a Python process imports that release."""
    folder = checkout(commit).name
    return {"PYTHONPATH": os.pathsep.join([folder, f"{folder}/dynamod/compat"])}
