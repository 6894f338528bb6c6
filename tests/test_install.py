"""Hints name what works for the copy that runs: a checkout, a folder that was installed, a wheel, or only a name."""

import importlib.metadata
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod import __version__
from dynamod.engine.interpreter import installs
from dynamod.engine.names import ENGINES
from dynamod.message import install
from dynamod.message.install import extra_hint, origin, packages, requirements

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Without a checkout: `url` is what the installer was given."""
    told = SimpleNamespace(url="")
    monkeypatch.setattr(install, "__file__", str(tmp_path / "lib/site-packages/dynamod/message/install.py"))
    found = SimpleNamespace(
        requires=importlib.metadata.requires("dynamod-llm"),
        read_text=lambda _name: json.dumps({"url": told.url}) if told.url else None,
    )
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: found)
    install.source_folder.cache_clear()
    yield told
    install.source_folder.cache_clear()


def test_in_a_checkout() -> None:
    assert extra_hint("llama_cpp").endswith(f"uv sync --extra llama_cpp in {ROOT}, or pip install '{ROOT}[llama_cpp]'")
    assert installs("other/python") == f"other/python -m pip install {ROOT}"
    assert ENGINES["vllm"].hint("v/python") == f"v/python -m pip install '{ROOT}[vllm]'"
    assert f"PYTHON -m pip install '{ROOT}[sglang]', and name" in ENGINES["sglang"].hint()


def test_a_wheel_names_the_packages_themselves(wheel: Any, tmp_path: Path) -> None:
    file = tmp_path / "dynamod_llm-1-py3-none-any.whl"
    file.touch()
    for url, named in (("", f"dynamod-llm=={__version__}"), (file.as_uri(), str(file))):
        wheel.url = url
        install.source_folder.cache_clear()
        assert extra_hint("llama_cpp") == f"pip install '{EXTRAS['llama_cpp'][0]}'"
        assert packages("nixl") == f"'{EXTRAS['nixl'][0].partition(';')[0]}'"
        assert origin() == named
        assert ENGINES["mistralrs"].hint("p") == f"p -m pip install '{EXTRAS['mistralrs'][0]}'"
        assert f"PYTHON -m pip install '{EXTRAS['vllm'][0]}' {named}, and name" in ENGINES["vllm"].hint()


def test_a_folder_that_was_installed_is_named_while_it_is_there(wheel: Any, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('name = "dynamod-llm"\n')
    wheel.url = folder.as_uri()
    assert packages("llama_cpp") == f"'{folder}[llama_cpp]'"
    assert origin() == f"'{folder}'"
    (folder / "pyproject.toml").unlink()
    folder.rmdir()
    install.source_folder.cache_clear()
    assert packages("llama_cpp") == f"'{EXTRAS['llama_cpp'][0]}'"
    assert origin() == f"dynamod-llm=={__version__}"


def test_what_an_extra_asks_for() -> None:
    for name in ("arima", "llama_cpp", "mistralrs", "demo", "infra", "sglang", "vllm"):
        assert sorted(requirements(name)) == sorted(EXTRAS[name]), name
