"""Lines of a batch, the answers that a killed process leaves behind, and the folder of both."""

import json
import os
import stat
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.batches.index import SETTLED_NS, FileIndex
from dynamod.features.batches.input import BadInput, read_input
from dynamod.features.batches.progress import Progress
from dynamod.features.batches.records import BatchRequest, FileObject, FileRecord, file_id, new_batch
from dynamod.features.batches.store import ABANDONED, FORMAT, Store
from dynamod.ingress.batch_lines import answer_row
from dynamod.ingress.own_folder import FORMAT_FILE
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
    monkeypatch.setattr("dynamod.features.batches.input.LINES", 3)
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


def kept(store: Store, owner: str, order: int) -> FileObject:
    name = file_id()
    store.data(name).write_bytes(b"x")
    made = FileObject(name, 1, order, f"{order}.jsonl", "batch")
    store.add(FileRecord(owner, order, made))
    return made


def test_a_list_reads_only_what_is_new(tmp_path: Path) -> None:
    """Two processes share the folder; each change of the one is seen by the other at once."""
    one, other = Store(str(tmp_path / "b"), 10_000), Store(str(tmp_path / "b"), 10_000)
    read: list[str] = []
    now = [time.time_ns()]
    index = FileIndex(
        tmp_path / "b" / "files", lambda name: read.append(name) or one._index._read(name), lambda: now[0]
    )
    made = [kept(one, "ab"[place % 2], place) for place in range(6)]
    for _ in range(3):
        assert index.files("a") == [made[4], made[2], made[0]] == other.files("a")
        assert index.files("b") == [made[5], made[3], made[1]] == other.files("b")
        assert index.files("c") == [] == other.files("c")
    assert len(read) == 6
    more = kept(other, "a", 3)  # perhaps in the tick of the clock in which the index was read
    assert index.files("a") == [made[4], more, made[2], made[0]] == one.files("a")
    assert len(read) == 7
    other.delete(made[4].id, "a")
    assert index.files("a") == [more, made[2], made[0]] == one.files("a")
    for name in (more, made[2], made[0]):
        one.delete(name.id, "a")
    assert index.files("a") == [] == other.files("a")
    assert len(read) == 7
    (tmp_path / "b" / "files" / f"{file_id()}.json").write_text("torn")
    (tmp_path / "b" / "files" / "other.json").write_text("{}")
    assert index.files("b") == [made[5], made[3], made[1]]


def test_the_index_hides_what_has_expired(tmp_path: Path) -> None:
    store, now = Store(str(tmp_path / "b"), 10_000), [time.time_ns()]
    seconds = now[0] // 10**9
    index = FileIndex(tmp_path / "b" / "files", store._index._read, lambda: now[0])
    made = [
        FileObject(file_id(), 3, seconds, "x", "batch", expires_at=expires)
        for expires in (seconds + 10, seconds + 20, msgspec.UNSET)
    ]
    for order, file in enumerate(made):
        store.add(FileRecord("ab"[order % 2], order, file))
    assert index.files(None) == made[::-1]
    now[0] += 10 * 10**9
    assert (index.files(None), index.files("a"), index.expired()) == (made[:0:-1], [made[2]], {made[0].id})
    now[0] += 10 * 10**9
    assert (index.files(None), index.files("b"), index.use()) == ([made[2]], [], {"a": (1, 3)})
    assert index.expired() == {made[0].id, made[1].id}
    store._unlink(made[0].id)
    assert index.expired() == {made[1].id}


def test_an_admin_sees_files_of_all_owners(store: Store) -> None:
    made = [kept(store, owner, place) for place, owner in enumerate(["a", "b", ""])]
    assert store.files(None) == made[::-1]
    assert store.file(made[1].id, None) == made[1]
    store.delete(made[1].id, None)
    assert store.files(None) == [made[2], made[0]]
    more = kept(store, "b", 9)
    assert store.files(None) == [more, made[2], made[0]]
    record = new_batch(BatchRequest("file-x", URL, "1h"), "a")
    store.add_batch(record)
    assert [one.owner for one in store.batches(None)] == ["a"]
    with pytest.raises(NotFound):
        store.batch(record.batch.id, "b")


def test_names_are_read_only_when_the_folder_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, looks, now = Store(str(tmp_path / "b"), 10_000), [0], [time.time_ns()]
    folder, listdir = tmp_path / "b" / "files", os.listdir
    made = kept(store, "a", 1)

    def counted(path: Path) -> list[str]:
        looks[0] += 1
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    index = FileIndex(folder, store._index._read, lambda: now[0])
    assert index.files("a") == [made]
    assert index.files("a") == [made]
    assert looks == [2], "a change in the same tick of the clock would have the same time"
    now[0] = folder.stat().st_mtime_ns + SETTLED_NS + 1
    for _ in range(5):
        assert index.files("a") == [made]
    assert looks == [3]
    store.delete(made.id, "a")
    assert index.files("a") == []


def test_the_thread_rests_while_it_reads_many(tmp_path: Path) -> None:
    store, rests = Store(str(tmp_path / "b"), 10_000), list[float]()
    for order in range(120):
        kept(store, "a", order)
    index = FileIndex(tmp_path / "b" / "files", store._index._read, rest=rests.append)
    index.refresh()
    assert len(rests) == 2
    assert len(index.files("a")) == 120
    assert len(rests) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kept"
    made.mkdir(mode=0o700)
    return made


def test_batches_of_an_older_release_are_taken(folder: Path) -> None:
    Store(str(folder), 1 << 20)
    (folder / FORMAT_FILE).unlink()
    Store(str(folder), 1 << 20)
    assert (folder / FORMAT_FILE).read_text() == f"{FORMAT}\n"
    Store(str(folder), 1 << 20)


@pytest.mark.parametrize("text", [f"{FORMAT + 1}\n", "two\n", ""])
def test_batches_of_a_newer_release_are_refused(folder: Path, text: str) -> None:
    (folder / FORMAT_FILE).write_text(text)
    with pytest.raises(UserError, match=r"batches_dir: .*format (has format|is of an unknown format)"):
        Store(str(folder), 1 << 20)
    assert (folder / FORMAT_FILE).read_text() == text
