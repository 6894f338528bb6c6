"""The input of a batch: lines that can be asked with their places in the file, and mistakes of other lines."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dynamod.ingress.batch_lines import request_entry
from dynamod.message.errors import BadRequest, UserError
from dynamod.preprocess.parse import LARGE, check_size

from .records import Mistake

LINES = 50_000
"""Most requests of a batch, the limit of OpenAI's API."""
_MARK = b"\xef\xbb\xbf"  # byte order mark that some editors write
HINT = "a line is a request in OpenAI's batch form"


class BadInput(UserError):
    """The batch cannot begin. `code`: the reason, for programs. `mistakes`: of lines."""

    def __init__(self, code: str, message: str, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__(message)
        self.code, self.mistakes = code, mistakes


@dataclass(frozen=True, slots=True)
class RawEntry:
    """One request, whose body has the bytes that the client wrote."""

    keys: dict[str, Any]
    url: str
    body: bytes


class _Line(msgspec.Struct):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Streamed(msgspec.Struct):
    stream: Any = None


_line = msgspec.json.Decoder(_Line).decode
_streamed = msgspec.json.Decoder(_Streamed).decode


@dataclass(frozen=True, slots=True)
class Place:
    """A line that can be asked: number from 1, first byte and bytes in the file."""

    number: int
    offset: int
    length: int


@dataclass(slots=True)
class Input:
    """Lines of a file. `urls`: routes that lines may ask."""

    file: Path
    urls: Collection[str]
    places: list[Place] = field(default_factory=list[Place])
    mistakes: list[Mistake] = field(default_factory=list[Mistake])

    @property
    def total(self) -> int:
        """Number of lines that are not empty."""
        return len(self.places) + len(self.mistakes)

    def entry(self, place: Place) -> RawEntry:
        """Read a line again. Raises OSError, UserError."""
        with self.file.open("rb") as file:
            file.seek(place.offset)
            return _entry(file.read(place.length), place.number, self.urls)


def read_input(path: Path, urls: Collection[str], longest: int) -> Input:
    """Check all lines. `longest`: most bytes of a line. Blocks for long: call it in a thread.

    Raises BadInput when no line can be asked or there are too many, OSError.
    """
    found, seen = Input(path, urls), dict[str, int]()
    number = offset = 0
    with path.open("rb") as file:
        while line := file.readline(longest + 1):
            number, length = number + 1, len(line)
            whole = length <= longest or line.endswith(b"\n")
            while not whole and (more := file.readline(1024 * 1024)):
                length += len(more)
                whole = more.endswith(b"\n")
            if line.strip() or length > longest:
                if found.total >= LINES:
                    raise BadInput("too_many_requests", f"the file has more than {LINES} requests")
                try:
                    if length > longest + 1:
                        raise UserError(
                            f"line {number}: longer than {longest} bytes, `batches_line_mb` of this server", HINT
                        )
                    name = _entry(line, number, urls).keys["custom_id"]
                    if (first := seen.setdefault(name, number)) != number:
                        raise UserError(f"line {number}: the custom_id of line {first}", "each needs its own")
                    found.places.append(Place(number, offset, length))
                except UserError as error:
                    found.mistakes.append(Mistake("invalid_request", error.line()[:1000], number))
            offset += length
    if not found.places:
        raise BadInput("no_requests", "no line of the file can be asked", found.mistakes)
    return found


def _entry(line: bytes, number: int, urls: Collection[str]) -> RawEntry:
    """The request of a line. The endpoint checks the body when the line is asked. Raises UserError."""
    where = f"line {number}"
    line = line.removeprefix(_MARK) if number == 1 else line
    try:
        if len(line) > LARGE:
            check_size(line)
        line.decode()
        return _raw_entry(line, where, urls)
    except BadRequest as error:
        raise UserError(f"{where}: {error}", HINT) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text ({error.reason})", HINT) from None
    except msgspec.ValidationError:
        raise UserError(f"{where}: no object", HINT) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})", HINT) from None


def _raw_entry(line: bytes, where: str, urls: Collection[str]) -> RawEntry:
    """The request of a line, of which only outer members are decoded. Raises UserError, msgspec's errors."""
    found = _line(line)
    body = bytes(found.body)
    outer = {"custom_id": found.custom_id, "method": found.method, "url": found.url}
    shown = {"stream": _streamed(body).stream} if body[:1] == b"{" else None
    entry = request_entry({**outer, "body": shown}, where, urls)
    return RawEntry(entry.keys, entry.url, body)
