"""Files of prompts: what is read, what is refused before anything is asked, what is written."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.cli.chat import entries
from dynamod.message.errors import UserError


@given(st.lists(st.text(min_size=1).filter(lambda text: bool(text.strip()))), st.integers(0, 3))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, texts: list[str], blank: int) -> None:
    file = tmp_path_factory.mktemp("p") / "prompts.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for text in texts:
            entries.write(out, {"text": text})
            out.write("\n" * blank)
    assert list(entries.prompts([file])) == texts


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "p.jsonl:2: no JSON"),
        ("[1]", "p.jsonl:2: no text"),
        ('{"text": 7}', "p.jsonl:2: no text"),
        ('{"text": " "}', "p.jsonl:2: no text"),
        ('{"prompt": "x"}', "p.jsonl:2: no text"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(UserError, match=says):
        entries.count([file])


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match="no UTF-8"):
        entries.count([file])


def test_which_files_are_meant(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no file"):
        entries.inputs("")
    with pytest.raises(UserError, match="no file"):
        entries.inputs(str(tmp_path / "nix"))
    with pytest.raises(UserError, match=r"no \*.jsonl file"):
        entries.inputs(str(tmp_path))
    for name in ("b.jsonl", "a.jsonl", "output.jsonl", "c.txt"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    assert list(entries.prompts(entries.inputs(str(tmp_path)))) == ["a.jsonl", "b.jsonl"]
    assert entries.inputs(str(tmp_path / "c.txt")) == [tmp_path / "c.txt"]
    with pytest.raises(UserError, match="would be overwritten"):
        entries.inputs(str(tmp_path / "output.jsonl"))
    (tmp_path / "c.txt").write_text("\n\n")
    with pytest.raises(UserError, match="no prompts"):
        entries.count([tmp_path / "c.txt"])
