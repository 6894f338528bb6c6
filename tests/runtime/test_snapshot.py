"""A snapshot has what the installer has recorded, and lasts while the original is replaced."""

import errno
import os
import py_compile
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod.runtime.snapshot import LINKED_BYTES, Snapshot, _compiled, environment, installed, remove

FILES = {"dynamod/__init__.py": "VALUE = 1\n", "dynamod/graph/x.py": "import os\n", "dynamo/y.txt": "text"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "other.py").write_text("of another distribution")
    info = folder / "dynamod_llm-1.dist-info"
    info.mkdir()
    record = [*FILES, "dynamod_llm-1.dist-info/RECORD", "../../bin/dynamo", "dynamod/__pycache__/gone.pyc"]
    (info / "RECORD").write_text("".join(f"{name},sha256=x,1\n" for name in record))
    return folder


@pytest.fixture(params=["links", "copies"])
def snapshot(
    request: pytest.FixtureRequest, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Snapshot]:
    def refused(_source: str, _target: str) -> None:
        raise OSError(errno.EXDEV, "another file system")

    if request.param == "copies":
        monkeypatch.setattr(os, "link", refused)
    py_compile.compile(str(source / "dynamod/__init__.py"), str(source / _compiled("dynamod/__init__.py")))
    made = Snapshot(source, tmp_path / "run/code")
    made.folder.parent.mkdir()
    made.take()
    yield made
    made.give_back()


def test_this_tree_is_a_checkout() -> None:
    assert installed() is None


def test_it_has_what_the_installer_recorded_and_keeps_it(snapshot: Snapshot) -> None:
    assert snapshot.usable
    for name in FILES:
        (snapshot.source / name).unlink()
        (snapshot.source / name).write_text("newer")
        assert (snapshot.folder / name).read_text() == FILES[name]
    assert (snapshot.folder / _compiled("dynamod/__init__.py")).is_file()
    assert not (snapshot.folder / "other.py").exists()


def test_large_data_that_cannot_be_a_hard_link_is_a_symbolic_one(source: Path, tmp_path: Path) -> None:
    (source / "dynamo/y.txt").write_bytes(bytes(LINKED_BYTES + 1))
    made = Snapshot(source, tmp_path / "code")
    made._links = False
    made.take()
    assert (made.folder / "dynamo/y.txt").is_symlink()
    assert not (made.folder / "dynamod/__init__.py").is_symlink()
    made.give_back()


def test_modules_compiled_there_are_given_back_unless_the_source_is_another(snapshot: Snapshot) -> None:
    compiled = _compiled("dynamod/graph/x.py")
    py_compile.compile(str(snapshot.folder / "dynamod/graph/x.py"), str(snapshot.folder / compiled))
    snapshot.give_back()
    assert (snapshot.source / compiled).read_bytes() == (snapshot.folder / compiled).read_bytes()
    (snapshot.source / compiled).unlink()
    (snapshot.source / "dynamod/graph/x.py").unlink()
    (snapshot.source / "dynamod/graph/x.py").write_text("import os, sys\n")
    snapshot.give_back()
    assert not (snapshot.source / compiled).exists()


def test_a_removed_one_is_made_again_while_the_package_is_the_same(snapshot: Snapshot) -> None:
    shutil.rmtree(snapshot.folder.parent)
    snapshot.restore()
    assert snapshot.usable
    shutil.rmtree(snapshot.folder.parent)
    (snapshot.source / "dynamod_llm-1.dist-info").rename(snapshot.source / "dynamod_llm-2.dist-info")
    (snapshot.source / "dynamod_llm-2.dist-info/RECORD").write_text("dynamod/__init__.py,,\n")
    snapshot.restore()
    assert not snapshot.usable


def test_it_does_not_come_when_the_daemon_ends_meanwhile(source: Path, tmp_path: Path) -> None:
    made = Snapshot(source, tmp_path / "code")
    made.abandon()
    made.take()
    assert not made.folder.exists()
    made.give_back()


def test_it_is_removed_level_by_level(snapshot: Snapshot) -> None:
    levels = snapshot.folders()
    for folders in levels:
        for folder in folders:
            remove(folder)
    assert not snapshot.folder.exists()
    assert [len(folders) for folders in levels] == [1, 2, 3, 1]
    remove(str(snapshot.folder))  # another program was faster


def test_what_a_user_has_put_on_the_path_comes_first(tmp_path: Path) -> None:
    assert environment({"A": "1"}, tmp_path) == {"A": "1", "PYTHONPATH": str(tmp_path)}
    twice = environment(environment({"PYTHONPATH": "/mine:"}, tmp_path), tmp_path)
    assert twice["PYTHONPATH"] == f"/mine{os.pathsep}{tmp_path}"
