"""The policies by name: one place knows them, and importing it costs nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.router.policies import NAMES, policy_class
from dynamod.router.policies.base import Policy

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_a_policy(name: str) -> None:
    found = policy_class(name)
    assert Policy in found.__mro__
    assert found.__doc__
    assert callable(found().choose)


def test_the_names_are_known_without_importing_a_policy() -> None:
    script = "import sys, dynamod.router.policies; print(*(name for name in sys.modules if name.startswith('dynamod')))"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {name for name in loaded.split() if name.startswith("dynamod.router.policies.")}


@pytest.mark.parametrize("document", ["docs/explanation/router.md", "dynamod/router/README.md"])
def test_the_documents_name_all(document: str) -> None:
    text = (ROOT / document).read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []
