"""Wheels of this tree, others made from them, and an environment that one is installed into."""

import functools
import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from .environments import ROOT, environment

_building = threading.Lock()  # tests that are played together ask for it at the same time


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dm-wheel-")


def wheel() -> Path:
    """The wheel of this tree. Skips the test where the build backend cannot be had."""
    with _building:
        return _wheel()


@functools.cache
def _wheel() -> Path:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv builds the wheel, and is not on the PATH")
    words = [uv, "build", "--quiet", "--wheel", "--out-dir", _folder().name, str(ROOT)]
    for more in (["--offline"], []):
        done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=120)
        if not done.returncode:
            return next(Path(_folder().name).glob("*.whl"))
    if "hatchling" in done.stderr:
        pytest.skip(f"the wheel cannot be built here: {done.stderr.strip().splitlines()[-1]}")
    raise AssertionError(done.stderr)


def changed(version: str, edit: Callable[[str, str], str]) -> Path:
    """The wheel as another version; `edit` gets name and text of each module and returns the text."""
    first = wheel()
    before = first.name.split("-")[1]
    made = Path(tempfile.mkdtemp(dir=_folder().name)) / first.name.replace(before, version)

    def renamed(name: str) -> str:
        return name.replace(f"-{before}.dist-info", f"-{version}.dist-info")

    with zipfile.ZipFile(first) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(".dist-info/METADATA"):
                data = data.replace(f"\nVersion: {before}".encode(), f"\nVersion: {version}".encode())
            elif name.endswith(".dist-info/RECORD"):  # sums and sizes may be left out
                lines = [line.partition(",")[0] for line in data.decode().splitlines()]
                data = "".join(f"{renamed(line)},,\n" for line in lines).encode()
            elif name == "dynamod/__init__.py":
                data = edit(name, data.decode().replace(f'"{before}"', f'"{version}"')).encode()
            elif name.endswith(".py"):
                data = edit(name, data.decode()).encode()
            new.writestr(renamed(name), data)
    return made


class Installed:
    """An environment with a wheel in it, and with the libraries of this environment."""

    def __init__(self, folder: Path) -> None:
        libraries = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        self.python = environment(folder, list(dict.fromkeys(libraries)))
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))

    def uv(self, file: Path, environ: Mapping[str, str] = os.environ) -> None:
        """`uv pip install`."""
        words = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(self.python), str(file)]
        subprocess.run(words, check=True, env=dict(environ), timeout=120)

    def pip(self, file: Path) -> None:
        """`pip install -U`, with the pip that comes with Python. Skips the test where none does."""
        run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=120)
        if run([str(self.python), "-m", "pip", "--version"]).returncode:
            done = run([str(self.python), "-m", "ensurepip"])
            if done.returncode:
                pytest.skip(f"this Python brings no pip: {done.stderr.strip()}")
        words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "-U", str(file)]
        done = run([str(self.python), *words])
        assert not done.returncode, done.stderr
