"""Reaching the daemon of the node, and starting it for a Python file."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from dynamod.runtime import attach


async def test_who_waits_no_longer_leaves_no_pipe_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stderr is not None
        monkeypatch.setattr(attach, "_spawn", lambda _path: daemon)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await attach.reach(tmp_path / "d.sock", cast("Any", None), start=True)
        assert daemon.stderr.closed
        daemon.stdin.write(b"\n")
