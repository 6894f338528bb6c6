"""Lines of a batch, the answers that a killed process leaves behind, and the folder of both."""

import json
import os
import stat
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.ingress.batches.input import BadInput, read_input
from dynamod.ingress.batches.lines import answer_row
from dynamod.ingress.batches.progress import Progress
from dynamod.ingress.batches.records import BatchRequest, FileObject, FileRecord, file_id, new_batch
from dynamod.ingress.batches.store import ABANDONED, Store
from dynamod.message.errors import NotFound, TooLarge, UserError

URL = "/v1/completions"


def line(name: str, **body: str) -> bytes:
    return json.dumps({"custom_id": name, "method": "POST", "url": URL, "body": body}).encode()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "b"), 10_000)


def test_lines_are_found_again(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    rows = [
        b"\xef\xbb\xbf" + line("a"),
        b"",
        line("long", prompt="x" * 500),
        b"\xff",
        b"[]",
        line("b", prompt="\u20ac"),
    ]
    file.write_bytes(b"\r\n".join(rows))
    found = read_input(file, (URL,), 300)
    assert [place.number for place in found.places] == [1, 6]
    assert [found.entry(place).keys["custom_id"] for place in found.places] == ["a", "b"]
    assert found.entry(found.places[1]).body == json.dumps({"prompt": "\u20ac"}).encode()
    assert [(one.line, one.message.partition(";")[0]) for one in found.mistakes] == [
        *(
            (3, "line 3: longer than 300 bytes, `batches_line_mb` of this server"),
            (4, "line 4: not UTF-8 text (invalid start byte)"),
        ),
        (5, "line 5: no object"),
    ]
    assert found.total == 5


def test_too_many_lines_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\n \n")
    with pytest.raises(BadInput, match="no line"):
        read_input(file, (URL,), 300)
    monkeypatch.setattr("dynamod.ingress.batches.input.LINES", 3)
    file.write_bytes(b"\n".join(line(str(number)) for number in range(3)))
    assert read_input(file, (URL,), 300).total == 3
    file.write_bytes(b"\n".join(line(str(number)) for number in range(4)))
    with pytest.raises(BadInput, match="more than 3"):
        read_input(file, (URL,), 300)


@given(st.integers(0, 400), st.booleans())
def test_answers_that_were_cut_off_are_asked_again(
    tmp_path_factory: pytest.TempPathFactory, cut: int, zeros: bool
) -> None:
    store = Store(str(tmp_path_factory.mktemp("b") / "kept"), 10_000)
    record = new_batch(BatchRequest("file-x", URL, "1h"), "")
    with Progress(store, record, Counter()) as progress:
        for number in (5, 2, 9):
            row = answer_row(progress.name(number), {"custom_id": "\u20ac"}, 200, "r", {})
            progress.write(number, row, good=number != 2)
    path = store.data(record.output)
    whole = path.read_bytes()
    os.truncate(path, min(cut, len(whole)))
    if zeros:
        os.truncate(path, len(whole))
    first = whole.index(b"\n") + 1
    kept = {2} | ({5} if cut >= first else set()) | ({9} if cut >= len(whole) else set())
    with Progress(store, record, Counter()) as progress:
        if not (zeros and cut == len(whole) - 1):  # only the end of the line is lost
            assert progress.done == kept
        assert (progress.counts.completed, progress.counts.failed) == (len(progress.done) - 1, 1)
        progress.write(11, answer_row(progress.name(11), {}, 200, "r", {}), good=True)
    assert all(json.loads(one)["id"] for one in path.read_text().splitlines())


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UserError, match="others may use"):
        Store(str(tmp_path), 1)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="batches_dir"):
        Store(str(tmp_path / "file"), 1)
    Store(str(tmp_path / "new/deep"), 1)
    assert stat.S_IMODE((tmp_path / "new/deep").stat().st_mode) == 0o700


def test_what_a_crash_leaves_is_removed_later(store: Store) -> None:
    record, hidden, kept, fresh = new_batch(BatchRequest("file-x", URL, "1h"), ""), file_id(), file_id(), file_id()
    store.put(record)
    for name in (record.output, hidden, kept, fresh):
        with store.create(store.data(name)) as file:
            file.write(b"x" * 3000)
        if name != fresh:
            os.utime(store.data(name), (1, time.time() - ABANDONED - 60))
    store.add(FileRecord("", 1, FileObject(kept, 3000, 1, "in.jsonl", "batch")))
    with pytest.raises(TooLarge):
        store.check_room()
    store.sweep()
    assert {name for name in (record.output, hidden, kept, fresh) if store.data(name).exists()} == {
        *(record.output, kept, fresh),
    }
    assert store.check_room(1000) == 1000
    with pytest.raises(NotFound):
        store.file(fresh, "")
    with pytest.raises(NotFound):
        store.file(kept, "somebody")
    first = store.lock(record.batch.id)
    assert first is not None
    with first:
        assert store.lock(record.batch.id) is None
