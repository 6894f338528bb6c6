"""Reading the files: times, statuses, files of several processes as one sequence."""

import contextlib
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.cli.app import run
from dynamod.features.audit.lines import dropped_line, request_line
from dynamod.features.audit.reading import Files, Wanted, moment, statuses
from dynamod.message.errors import UserError
from dynamod.observe.records import RequestRecord
from dynamod.observe.rotated import RotatedFile, Rotation

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SMALL = Rotation(1000, 0, 100)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30s", 30), ("15m", 900), ("1h30m", 5400), (" 2d ", 172800), ("1w", 604800), ("0s", 0)],
)
def test_durations(text: str, ago: float) -> None:
    assert NOW - moment(text, NOW) == timedelta(seconds=ago)


@pytest.mark.parametrize(
    "text", ["2026-01-31", "2026-01-31T00:00", "2026-01-31T00:00:00Z", "2026-01-31T01:00:00+01:00"]
)
def test_times(text: str) -> None:
    assert moment(text, NOW) == datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "1", "h", "1x", "-1h", "1.5h", "yesterday", "2026-13-01", "999999999w", "2026"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--until is {text!r}")) as raised:
        moment(text, NOW, "--until")
    assert "1h30m" in raised.value.hint


@given(st.text(max_size=20) | st.from_regex(r"\A[0-9]{1,9}[wdhms]\Z") | st.datetimes().map(datetime.isoformat))
def test_any_text_is_a_time_or_an_error(text: str) -> None:
    with contextlib.suppress(UserError):
        assert moment(text, NOW).tzinfo is not None


@given(st.integers(0, 9999), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    found = moment(f"{hours}h{minutes}m{seconds}s", NOW)
    assert NOW - found == timedelta(hours=hours, minutes=minutes, seconds=seconds)


def test_statuses() -> None:
    assert (404 in statuses("404"), 405 in statuses("404")) == (True, False)
    assert [code in statuses("4XX") for code in (399, 400, 499, 500)] == [False, True, True, False]
    for text in ("", "40", "4x", "600", "6xx", "4xxx", "٤٠٤"):
        with pytest.raises(UserError, match="--status") as raised:
            statuses(text)
        assert "4xx" in raised.value.hint


def record(number: int, **fields: Any) -> RequestRecord:
    given: dict[str, Any] = {"duration_ms": 10.0, "status": 200, **fields}
    return RequestRecord(id=str(number), time=NOW.timestamp() + number, **given)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 requests of two processes, in files of 1,000 bytes; every tenth is refused."""
    files = [RotatedFile(tmp_path, f"agg/ingress.{number}", SMALL) for number in range(2)]
    for number in range(60):
        fields = {"key": "ab"[number % 2], "model": "m", "status": 200 if number % 10 else 404}
        files[number % 2].append([request_line(record(number, **fields))])
    for file in files:
        file.close()
    assert len([*tmp_path.iterdir()]) > 10
    return tmp_path


def ids(folder: Path, wanted: Wanted = Wanted()) -> list[int]:
    return [int(entry["id"]) for entry in Files([folder]).entries(wanted)]


def test_all_files_are_one_sequence(folder: Path) -> None:
    assert ids(folder) == list(range(60))
    assert ids(folder, Wanted(key="a")) == list(range(0, 60, 2))
    assert ids(folder, Wanted(status=statuses("4xx"))) == list(range(0, 60, 10))
    assert ids(folder, Wanted(model="other")) == ids(folder, Wanted(kind="command")) == []
    since, until = NOW + timedelta(seconds=50), NOW + timedelta(seconds=55)
    assert ids(folder, Wanted(since=since)) == list(range(50, 60))
    assert ids(folder, Wanted(since=since, until=until)) == list(range(50, 55))


def test_the_order_is_that_of_the_ends(tmp_path: Path) -> None:
    one, two = (RotatedFile(tmp_path, name, SMALL) for name in ("one", "two"))
    two.append([request_line(record(2))])
    one.append([request_line(record(1, duration_ms=5000.0)), request_line(record(9)), dropped_line(3)])
    one.close()
    two.close()
    found = [*Files([tmp_path]).entries(Wanted())]
    assert [entry.get("id", "") for entry in found if entry["kind"] == "request"] == ["2", "1", "9"]


def test_old_files_are_not_read(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.count(".") > 2:
            path.write_bytes(b"not a line\n")
            os.utime(path, (0, 0))
    files = Files([folder])
    assert [int(entry["id"]) for entry in files.entries(Wanted(since=NOW))][-1] == 59
    assert files.unreadable == 0


def test_lines_that_are_none_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "agg-ingress.0.jsonl").write_bytes(b'{"kind"\nnull\n{}\n{"kind":"request","time":"2026-01-31"}\n\xff\n')
    (folder / "other.txt").write_bytes(b"x")
    files = Files([folder])
    assert len([*files.entries(Wanted())]) > 50
    assert files.unreadable == 4
    run(["audit", "--folder", str(folder), "-n", "2"])
    shown = capsys.readouterr()
    assert [line.rpartition("id=")[2] for line in shown.out.splitlines()] == ["57", "59"]
    assert "4 lines could not be read" in shown.err


def test_the_last_closed_file_counts_without_a_current_one(folder: Path) -> None:
    (folder / "agg-ingress.1.jsonl").unlink()
    found = ids(folder, Wanted(key="b"))
    assert found == list(range(1, found[-1] + 1, 2))
    assert len(found) > 20


def test_a_folder_without_files(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="there are no audit files in") as raised:
            run(["audit", "--folder", str(folder)])
        assert "audit: true" in raised.value.hint


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="cannot read") as raised:
        run(["audit", "--folder", str(file)])
    assert "sudo" in raised.value.hint
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*a\.jsonl: Is a directory"):
        run(["audit", "--folder", str(tmp_path)])
