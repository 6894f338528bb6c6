"""Files of blocks: nothing is taken for a block that was not written as one, and nothing is left behind."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.tiers.files import OVERHEAD, BadFile, BlockFiles, occupied
from dynamod.kvcache.tier_settings import folder_bytes
from dynamod.message.errors import UserError


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    opened = BlockFiles(tmp_path / "kv", "layout")
    yield opened
    opened.close()


def file_of(files: BlockFiles, name: int) -> Path:
    return files.path / f"{name:016x}"[:2] / f"{name:016x}.kv"


@pytest.mark.parametrize("name", [0, 7, 2**64 - 1])
def test_a_block_is_read_as_it_was_written(files: BlockFiles, name: int) -> None:
    for data in (b"", b"abc", os.urandom(100_000)):
        files.write(name, data)
        assert files.read(name) == data
        assert files.scan() == [(name, occupied(len(data)))]
        assert file_of(files, name).stat().st_size == len(data) + OVERHEAD
    assert folder_bytes(files.path.parent) >= 100_000
    files.remove(name)
    files.remove(name)
    assert files.scan() == []
    with pytest.raises(FileNotFoundError):
        files.read(name)


def test_a_file_with_any_byte_changed_is_not_loaded(files: BlockFiles) -> None:
    files.write(5, b"content of a block")
    whole = file_of(files, 5).read_bytes()
    for place in range(len(whole)):
        file_of(files, 5).write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(BadFile):
            files.read(5)
        assert files.scan() == [], "it is removed"
    for length in range(len(whole)):
        file_of(files, 5).write_bytes(whole[:length])
        with pytest.raises(BadFile):
            files.read(5)
    file_of(files, 5).write_bytes(whole + b"x")
    with pytest.raises(BadFile):
        files.read(5)


@given(st.binary(max_size=300))
def test_no_other_bytes_are_a_block(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    files = BlockFiles(tmp_path_factory.mktemp("kv"), "layout")
    try:
        files.write(9, b"x")
        file_of(files, 9).write_bytes(data)
        with pytest.raises(BadFile):
            files.read(9)
    finally:
        files.close()


def test_the_file_of_another_block_or_layout_is_not_loaded(files: BlockFiles, tmp_path: Path) -> None:
    files.write(1 << 60, b"one")
    files.write((1 << 60) + 1, b"two")
    file_of(files, 1 << 60).rename(file_of(files, (1 << 60) + 1))
    with pytest.raises(BadFile, match="damaged, or of another layout"):
        files.read((1 << 60) + 1)
    other = BlockFiles(tmp_path / "kv", "other layout")
    assert other.scan() == []
    other.write(3, b"three")
    files.write(3, b"mine")
    file_of(other, 3).rename(file_of(files, 3))
    with pytest.raises(BadFile):
        files.read(3)
    other.close()


def test_what_is_no_file_of_ours_is_not_opened(files: BlockFiles, tmp_path: Path) -> None:
    files.write(4, b"block")
    elsewhere = tmp_path / "elsewhere"
    file_of(files, 4).rename(elsewhere)
    file_of(files, 4).symlink_to(elsewhere)
    assert files.scan() == []
    with pytest.raises(OSError, match="symbolic"):
        files.read(4)
    file_of(files, 4).unlink()
    os.mkfifo(file_of(files, 4))
    with pytest.raises(BadFile, match="no file of ours"):
        files.read(4)


def test_the_order_of_use_survives_and_the_parts_of_a_crashed_writer_do_not(tmp_path: Path) -> None:
    script = f"""
        import os
        from pathlib import Path
        from dynamod.features.tiers import files as module
        files = module.BlockFiles(Path({str(tmp_path)!r}), "layout")
        for name in range(4):
            files.write(name, bytes(5000))
            os.utime(files.path / "00" / f"{{name:016x}}.kv", (name, name))
        real = module._write
        def crash(path, parts):
            real(path, parts[:1])
            os._exit(9)
        module._write = crash
        files.write(9, bytes(100))
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)]).returncode == 9
    files = BlockFiles(tmp_path, "layout")
    assert len(list(files.path.rglob("*.part"))) == 1
    (files.path / "00" / "notes.txt").write_text("not ours")
    (files.path / "00" / "zzzzzzzzzzzzzzzz.kv").write_text("not ours")
    files.read(1)
    assert files.scan() == [(name, 8192) for name in (0, 2, 3, 1)]
    assert list(files.path.rglob("*.part")) == []
    assert len(list(files.path.rglob("*"))) == 1 + 1 + 4 + 2, "the lock, the folder, the blocks, and what is not ours"
    files.close()


def test_each_worker_has_files_of_its_own_and_finds_them_again(tmp_path: Path) -> None:
    first, second = BlockFiles(tmp_path, "layout"), BlockFiles(tmp_path, "layout")
    assert first.path != second.path
    first.write(1, b"one")
    assert second.scan() == []
    first.close()
    again = BlockFiles(tmp_path, "layout")
    assert again.path == first.path
    assert again.read(1) == b"one"
    again.close()
    second.close()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    BlockFiles(tmp_path, "layout").close()
    [folder] = tmp_path.iterdir()
    folder.chmod(0o777)
    with pytest.raises(UserError, match=r"others may write to .*\.0"):
        BlockFiles(tmp_path, "layout")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match=r"kv_disk_path .*file: "):
        BlockFiles(file, "layout")
