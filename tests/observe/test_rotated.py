"""A rotated file: sizes, periods, several writers, full disks."""

import os
import resource
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.observe.rotated import RotatedFile, Rotation, closed_files, is_closed

ROOMY = Rotation(1_000_000, 0, 3)


def test_lines_mode_and_name(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "audit", "agg/ingress.0", ROOMY)
    assert file.append([b"a\n", b"b\n"]) == 2
    assert file.path == tmp_path / "audit/agg-ingress.0.jsonl"
    assert file.path.read_bytes() == b"a\nb\n"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    file.close()
    file.path.chmod(0o644)
    assert file.append([b"c\n"]) == 1
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.close()


def test_a_file_is_closed_at_its_size(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path, "w", Rotation(100, 0, 3))
    for number in range(100):
        assert file.append([b"%09d\n" % number]) == 1
    assert file.append([b"x" * 300 + b"\n", b"last\n"]) == 2  # a line above the size has a file of its own
    file.close()
    old = closed_files(file.path)
    assert len(old) == 3
    assert [is_closed(path) for path in (*old, file.path)] == [file.path] * 3 + [None]
    lines = [line for path in (*old, file.path) for line in path.read_bytes().splitlines()]
    assert lines[-2:] == [b"x" * 300, b"last"]
    numbers = [int(line) for line in lines[:-2]]
    assert numbers == list(range(numbers[0], 100))


def test_a_file_is_closed_at_the_end_of_its_period(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path, "w", Rotation(1_000_000, 86400, 3))
    file.append([b"yesterday\n"])
    before = file.path.stat().st_mtime - 86400
    os.utime(file.path, (before, before))
    file.append([b"today\n", b"today\n"])
    file.close()
    assert [path.read_bytes() for path in (*closed_files(file.path), file.path)] == [b"yesterday\n", b"today\ntoday\n"]


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    """A process and its successor: each notices that the other has rotated the file, or that it was removed."""
    one, two = (RotatedFile(tmp_path, "w", Rotation(100, 0, 100)) for _ in range(2))
    for number in range(60):
        assert (one, two)[number % 2].append([b"%09d\n" % number]) == 1
    found = [line for path in (*closed_files(one.path), one.path) for line in path.read_bytes().splitlines()]
    assert [*map(int, found)] == list(range(60))
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    one.path.unlink()
    assert (one.append([b"again\n"]), two.append([b"and again\n"])) == (1, 1)
    assert one.path.read_bytes() == b"again\nand again\n"
    one.close()
    two.close()


def test_names_that_begin_alike_are_different_files(tmp_path: Path) -> None:
    for name in ("w", "w.0"):
        file = RotatedFile(tmp_path, name, Rotation(10, 0, 1))
        for _ in range(5):
            file.append([b"12345678\n"])
        file.close()
    assert len([*tmp_path.iterdir()]) == 4
    assert len(closed_files(tmp_path / "w.jsonl")) == len(closed_files(tmp_path / "w.0.jsonl")) == 1


def test_a_link_and_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("keep")
    (tmp_path / "w.jsonl").symlink_to(tmp_path / "other")
    (tmp_path / "v.jsonl").mkdir()
    for name in ("w", "v"):
        file = RotatedFile(tmp_path, name, ROOMY)
        assert file.append([b"x\n"]) == 0
        assert file.failure
    assert (tmp_path / "other").read_text() == "keep"


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may be larger than 1,000 bytes, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path, "w", ROOMY)
    assert file.append([b"x" * 299 + b"\n"] * 5) == 3
    assert file.failure
    assert file.path.read_bytes() == (b"x" * 299 + b"\n") * 3
    assert file.append([b"y" * 299 + b"\n"]) == 0
    assert file.append([b"z" * 99 + b"\n"]) == 1
    assert file.failure == ""
    assert file.path.stat().st_size == 1000
    file.close()


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 90))
def test_every_line_is_in_one_file(sizes: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = RotatedFile(Path(folder), "w", Rotation(limit, 0, 1000))
        lines = [b"%d" % number + b"x" * size + b"\n" for number, size in enumerate(sizes)]
        for first in range(0, len(lines), 7):
            part = lines[first : first + 7]
            assert file.append(part) == len(part)
        file.close()
        paths = [*closed_files(file.path), *([file.path] if file.path.exists() else [])]
        assert b"".join(path.read_bytes() for path in paths) == b"".join(lines)
        assert all(path.stat().st_size <= limit or path.read_bytes().count(b"\n") == 1 for path in paths)
