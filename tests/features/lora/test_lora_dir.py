"""Which paths of adapters a client may name."""

import os
from pathlib import Path

import pytest

from dynamod.features.lora.endpoints import below
from dynamod.message.errors import BadRequest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lora" / "sub").mkdir(parents=True)
    (tmp_path / "lora-other").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "lora" / "a.gguf").write_text("x")
    (tmp_path / "lora" / "out.gguf").symlink_to(tmp_path / "secret")
    (tmp_path / "lora" / "up").symlink_to(tmp_path)
    (tmp_path / "lora" / "in.gguf").symlink_to("a.gguf")
    return tmp_path / "lora"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.gguf", "a.gguf"),
        ("./sub/../a.gguf", "a.gguf"),
        ("{folder}/a.gguf", "a.gguf"),
        ("in.gguf", "in.gguf"),
        ("sub", "sub"),
        ("not/yet/there.gguf", "not/yet/there.gguf"),
    ],
)
def test_a_path_below_the_folder(folder: Path, path: str, found: str) -> None:
    assert below(str(folder), path.format(folder=folder)) == str(folder / found)
    assert below(os.path.relpath(folder), path.format(folder=folder)) == str(folder / found)


@pytest.mark.parametrize(
    "path",
    [
        *(".", "", "..", "../secret", "sub/../../secret", "{folder}", "{folder}-other/x", "/etc/passwd", "out.gguf"),
        *("up/secret", "up/lora-other", "a\0b", "x" * 100_000 + "/../../../secret", "~/x/../../../y"),
    ],
)
def test_a_path_elsewhere_is_refused(folder: Path, path: str) -> None:
    with pytest.raises(BadRequest, match=r"`lora_path` is .*; it must be below .*, the setting `lora_dir`") as caught:
        below(str(folder), path.format(folder=folder))
    assert (caught.value.param, caught.value.code) == ("lora_path", "not_in_lora_dir")
    assert len(str(caught.value)) < 600


def test_without_a_folder_no_adapter_is_loaded() -> None:
    with pytest.raises(BadRequest, match=r"`lora_path` is '/x'.*`lora_dir` of the frontend \(--lora-dir\) is empty"):
        below("", "/x")


def test_a_folder_that_only_the_workers_have() -> None:
    assert below("/no/such/folder", "a.gguf") == "/no/such/folder/a.gguf"
