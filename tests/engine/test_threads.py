import os
import subprocess
import sys

import pytest

from dynamod.engine import threads
from dynamod.engine.threads import OPENMP, RAYON, cores, openmp_threads, set_rayon_threads


def test_openmp_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPENMP, "3")
    assert openmp_threads() == 3
    monkeypatch.setenv(OPENMP, "many")
    assert openmp_threads() == cores() >= 1


@pytest.mark.parametrize(
    ("environ", "number"),
    [({}, 7), ({OPENMP: "3"}, 3), ({RAYON: "5", OPENMP: "3"}, 5), ({RAYON: "0"}, 7), ({RAYON: "many"}, 7)],
)
def test_rayon_leaves_a_core(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], number: int) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    assert set_rayon_threads(environ) == number
    assert environ[RAYON] == str(number)
    monkeypatch.setattr(threads, "cores", lambda: 1)
    assert set_rayon_threads({}) == 1


@pytest.mark.engine
def test_mistralrs_computes_with_so_many_threads() -> None:
    """In a process of its own: rayon reads the variable once."""
    pytest.importorskip("mistralrs")
    code = """
import os
from dynamod.engine.base import EngineOptions
from dynamod.engine.mistralrs.loading import load
from dynamod.sample import path
runner = load(EngineOptions("m", path("sample.gguf")))
print(os.environ["RAYON_NUM_THREADS"])
"""
    environ = {name: value for name, value in os.environ.items() if name not in (OPENMP, RAYON)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(max(1, cores() - 1))], done.stderr
