"""Files of prompts: which are meant, what their lines say, and how much of each is answered already.

A line is `{"text": "..."}`, whose further keys are repeated in its answer, or a request in OpenAI's batch form:
`{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamod.ingress.batch_lines import Entry, request_entry
from dynamod.message.errors import UserError

SUFFIX = ".output.jsonl"
"""The answers to `prompts.jsonl` are in `prompts.output.jsonl` next to it."""
ANSWER = ("response", "tokens_in", "tokens_out", "elapsed_ms", "finish_reason", "error")
"""Keys of an answer. A line of prompts that has some came from an output file; they are not repeated."""
URLS = ("/v1/chat/completions", "/v1/completions")
HINT = 'a line is an object like {"text": "Hello"}, or a request in OpenAI\'s batch form'


@dataclass(slots=True)
class Job:
    """One file of prompts. The first `done` of `total` are answered, in the first `size` bytes of the output."""

    prompts: Path
    total: int
    done: int = 0
    size: int = 0

    @property
    def output(self) -> Path:
        """Where the answers are written, in the order of the prompts."""
        return self.prompts.with_name(self.prompts.stem + SUFFIX)

    def left(self) -> Iterator[Entry]:
        """The prompts that are not answered. Raises UserError."""
        for index, entry in enumerate(entries(self.prompts)):
            if index >= self.done:
                yield entry


def inputs(path: str) -> list[Path]:
    """The files that `batch:PATH` means: the file, or all *.jsonl of the folder. Raises UserError."""
    place = Path(path).expanduser()
    if not path:
        raise UserError("in=batch: names no file", "for example in=batch:prompts.jsonl")
    if place.is_dir():
        found = sorted(file for file in place.glob("*.jsonl") if not _is_output(file))
        if not found:
            raise UserError(f"no *.jsonl file in {path}", 'each line is an object like {"text": "Hello"}')
        return found
    if not place.is_file():
        raise UserError(f"no file {path}", 'in=batch: needs a file of lines like {"text": "Hello"}')
    if _is_output(place):
        raise UserError(f"{path} has the name of a file of answers", "give the prompts another name")
    return [place]


def _is_output(file: Path) -> bool:
    return file.name.endswith(SUFFIX) or file.name == SUFFIX[1:]  # the latter: NVIDIA Dynamo's name


def entries(file: Path) -> Iterator[Entry]:
    """The prompts in their order. Raises UserError that names the file and line of a mistake."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _entry(line, f"{file}:{number}")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", "check the path") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error.reason})", "save it as UTF-8") from None


def _entry(line: str, where: str) -> Entry:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})", HINT) from None
    if isinstance(value, dict) and "text" not in value and "body" in value:
        return request_entry(value, where, URLS)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str) or not value["text"].strip():
        raise UserError(f"{where}: no text", HINT)
    return Entry({key: one for key, one in value.items() if key not in ANSWER})


def read(files: Sequence[Path]) -> list[Job]:
    """Reads all once, so that a mistake in the last line is an error before the first prompt is asked."""
    jobs = [Job(file, sum(1 for _ in entries(file))) for file in files]
    if not any(job.total for job in jobs):
        raise UserError(f"{', '.join(map(str, files))}: no prompts", HINT)
    outputs = [job.output for job in jobs]
    if twice := next((output for output in outputs if outputs.count(output) > 1), None):
        raise UserError(f"two files of prompts have their answers in {twice}", "rename one")
    return jobs


def has_answers(job: Job) -> bool:
    """Whether a program has written into its output."""
    try:
        return job.output.stat().st_size > 0
    except OSError:
        return False


def find_answers(job: Job) -> None:
    """Set `done` and `size` to what the output holds; a line that was cut off does not count.

    Raises UserError when it does not answer these prompts.
    """
    prompts, hint = entries(job.prompts), "--overwrite starts anew"
    job.done = job.size = 0
    try:
        with job.output.open("rb") as lines:
            whole = (line for line in lines if line.endswith(b"\n"))
            for number, line in enumerate(whole, 1):
                where = f"{job.output}:{number}"
                if (entry := next(prompts, None)) is None:
                    raise UserError(f"{where}: more answers than {job.prompts} has prompts", hint)
                if not _answers(line, entry):
                    raise UserError(f"{where} does not answer prompt {number} of {job.prompts}", hint)
                job.done, job.size = number, job.size + len(line)
    except OSError as error:
        raise UserError(f"{job.output}: {error.strerror}", hint) from None


def _answers(line: bytes, entry: Entry) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and all(key in row and row[key] == value for key, value in entry.keys.items())
