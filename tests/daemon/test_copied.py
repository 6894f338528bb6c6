"""The copy of the installed package goes for good when the daemon ends."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from dynamod.daemon import copied
from dynamod.daemon.copied import CopiedPackage
from dynamod.runtime.paths import RunFolder


async def test_files_that_go_at_the_end_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "site-packages"
    (source / "dynamod").mkdir(parents=True)
    (source / "dynamod/__init__.py").write_text("")
    info = source / "dynamod_llm-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("dynamod/__init__.py,,\ndynamod_llm-1.dist-info/RECORD,,\n")
    monkeypatch.setattr(copied, "installed", lambda: source)
    monkeypatch.setattr(copied, "adopt", lambda folder: None)
    folder, code = RunFolder(tmp_path / "d.sock"), CopiedPackage()
    await code.take(folder)
    assert (folder.path / "code/dynamod/__init__.py").is_file()
    removing, goes_on = threading.Event(), threading.Event()

    def slowly(path: str) -> None:
        shutil.rmtree(path)
        if path.endswith("dynamod"):
            removing.set()
            goes_on.wait(10)

    monkeypatch.setattr(copied, "remove", slowly)
    ending = asyncio.create_task(code.give_back())
    assert await asyncio.to_thread(removing.wait, 10)
    await code.restore()  # as the daemon does twice per second
    goes_on.set()
    await ending
    assert list(folder.path.iterdir()) == []
    folder.remove()
