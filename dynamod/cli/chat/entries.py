"""Files of prompts in, a file of answers out: one JSON object per line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from dynamod.message.errors import UserError

OUTPUT = "output.jsonl"


def inputs(path: str) -> list[Path]:
    """The files that `batch:PATH` means: the file, or all *.jsonl of the folder. Raises UserError."""
    place = Path(path).expanduser()
    if not path:
        raise UserError("in=batch: names no file", "for example in=batch:prompts.jsonl")
    if place.is_dir():
        found = sorted(file for file in place.glob("*.jsonl") if file.name != OUTPUT)
        if not found:
            raise UserError(f"no *.jsonl file in {path}", 'each line is an object like {"text": "Hello"}')
        return found
    if not place.is_file():
        raise UserError(f"no file {path}", 'in=batch: needs a file of lines like {"text": "Hello"}')
    if place.name == OUTPUT:
        raise UserError(f"{path} would be overwritten by the answers", "give the prompts another name")
    return [place]


def prompts(files: Sequence[Path]) -> Iterator[str]:
    """The prompts in their order. Raises UserError that names the file and line of a mistake."""
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _prompt(line, f"{file}:{number}")
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}", "check the path") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{file}: no UTF-8 text ({error.reason})", "save it as UTF-8") from None


def _prompt(line: str, where: str) -> str:
    hint = 'a line is an object like {"text": "Hello"}'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: no JSON ({error})", hint) from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str) or not value["text"].strip():
        raise UserError(f"{where}: no text", hint)
    return str(value["text"])


def count(files: Sequence[Path]) -> int:
    """Reads all once, so that a mistake in the last line is an error before the first prompt is asked."""
    total = sum(1 for _ in prompts(files))
    if not total:
        raise UserError(f"{', '.join(map(str, files))}: no prompts", 'a line is an object like {"text": "Hello"}')
    return total


def open_output(files: Sequence[Path]) -> TextIO:
    """`output.jsonl` beside the prompts, empty. Raises UserError."""
    path = files[0].parent / OUTPUT
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "the answers are written beside the prompts") from None


def write(output: TextIO, fields: dict[str, Any]) -> None:
    """One line, which stands in the file when this returns."""
    output.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")
    output.flush()
