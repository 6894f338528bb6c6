"""A batch whose requests come in one body: all of it is kept, or nothing."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.extension.settings import extended
from dynamod.features.batches.keeping import keep_batch
from dynamod.features.batches.store import Store
from dynamod.http.settings import FrontendSettings

LINES = b'{"custom_id": "a"}\n'


@pytest.fixture
def frontend(tmp_path: Path) -> Any:
    folder = tmp_path / "batches"
    folder.mkdir(mode=0o700)
    settings = extended(FrontendSettings)(host="127.0.0.1", port=0)
    return SimpleNamespace(settings=settings, parts={"batches": Store(str(folder), 1 << 20)})


async def test_the_lines_are_a_file_of_the_owner(frontend: Any) -> None:
    store = frontend.parts["batches"]
    record = await keep_batch(frontend, "me", LINES, "/v1/messages", "x.jsonl")
    (file,) = store.files("me")
    assert (file.id, file.bytes, file.filename) == (record.batch.input_file_id, len(LINES), "x.jsonl")
    assert store.data(file.id).read_bytes() == LINES
    assert [one.batch.id for one in store.batches("me")] == [record.batch.id]


@pytest.mark.parametrize("step", ["add", "add_batch"])
async def test_what_cannot_be_shown_is_not_kept(frontend: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    store = frontend.parts["batches"]

    def full(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store, step, full)
    with pytest.raises(OSError, match="Input"):
        await keep_batch(frontend, "me", LINES, "/v1/messages", "x.jsonl")
    assert (store.files("me"), store.used(), store.batches("me")) == ([], 0, [])
