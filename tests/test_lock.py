"""`requirements.lock`: every dependency of a checkout with version and hashes, and no name of a host."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import EXTRAS, FILE, HEAD, pinned

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())


def test_it_names_no_host_and_no_folder() -> None:
    text = FILE.read_text()
    assert text.startswith(HEAD)
    assert not re.search(r"://|@|^--|file:|^-e|^\.", text, re.MULTILINE)
    assert not re.search(r"\b[a-z0-9-]+\.(com|org|net|io|dev|internal|local)\b", text)


def test_it_has_what_the_project_depends_on() -> None:
    pins: dict[str, set[str]] = {}
    for name, version in pinned(FILE.read_text()):
        pins.setdefault(canonicalize_name(name), set()).add(version)
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    lists = [PROJECT["project"]["dependencies"], *groups.values(), *(extras[one] for one in (*EXTRAS, "infra"))]
    for text in (text for texts in lists for text in texts):
        wanted = Requirement(text)
        if wanted.name != PROJECT["project"]["name"]:
            found = pins.get(canonicalize_name(wanted.name), set())
            assert found, f"{wanted.name}: run python -m tools.lock"
            assert all(wanted.specifier.contains(one, prereleases=True) for one in found), f"{text}: {found}"


def test_what_is_no_pin_is_refused() -> None:
    hashed = " \\\n    --hash=sha256:" + "a" * 64
    assert dict(pinned(f"{HEAD}a==1.0{hashed}{hashed}\nb-c==2 ; sys_platform == 'linux'{hashed}\n")) == {
        "a": "1.0",
        "b-c": "2",
    }
    for line in ("a>=1", "a==1.0", "--extra-index a", f"-e .{hashed}", f"a @ file:///a{hashed}"):
        with pytest.raises(ValueError, match="no package with version and hashes"):
            dict(pinned(f"{HEAD}{line}\n"))
