"""Files and batches: OpenAI's objects, the records on disk, and errors."""

import errno
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from dynamod.message.errors import NotFound, RequestError

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Ended = Literal["completed", "failed", "expired", "cancelled"]
ENDED: tuple[Status, ...] = ("completed", "failed", "expired", "cancelled")
Url = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Purpose = Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
"""What clients keep files for. Only files for batches are read by this server; others are kept and given back."""
URLS: tuple[str, ...] = (*get_args(Url), "/v1/messages")
"""Endpoints that lines of a batch may ask; batches of /v1/messages have routes of their own."""
SHORTEST_LIFE, LONGEST_LIFE = 3600, 30 * 24 * 3600
"""Seconds after which a file may expire, by OpenAI's API."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_Text = Annotated[str, Meta(max_length=512)]
_Key = Annotated[str, Meta(max_length=64)]


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a file is removed: so many seconds after it was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=SHORTEST_LIFE, le=LONGEST_LIFE)]


class FileObject(msgspec.Struct, frozen=True):
    """A file. `bytes`: its length. `created_at`, `expires_at`: seconds since 1970; without the latter a file stays."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose | Literal["batch_output"]
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    expires_at: int | msgspec.UnsetType = msgspec.UNSET

    def expired(self, now: float) -> bool:
        """Whether the file is to be removed. `now`: seconds since 1970."""
        return self.expires_at is not msgspec.UNSET and self.expires_at <= now


class FileRecord(msgspec.Struct, frozen=True):
    """A file on disk. `owner`: of the key that made the file. `order`: nanoseconds since 1970, for lists."""

    owner: str
    order: int
    file: FileObject


class DeletedFile(msgspec.Struct, frozen=True):
    """The answer to DELETE /v1/files/{id}."""

    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/batches. `completion_window`: hours until the batch expires."""

    input_file_id: str
    endpoint: Url
    completion_window: str
    metadata: Annotated[dict[_Key, _Text], Meta(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


class Counts(msgspec.Struct):
    """Numbers of requests of a batch: all, those with status 200, other ones."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Mistake(msgspec.Struct, frozen=True):
    """A mistake of the input. `line`: number from 1; None: the whole input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Mistakes(msgspec.Struct, frozen=True):
    """OpenAI's list of mistakes."""

    data: list[Mistake]
    object: Literal["list"] = "list"


class BatchObject(msgspec.Struct):
    """A batch as OpenAI shows it; times are seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    metadata: Mapping[str, str] | None = None
    errors: Mistakes | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Counts = msgspec.field(default_factory=Counts)
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    object: Literal["batch"] = "batch"


class BatchRecord(msgspec.Struct):
    """A batch on disk. `output`, `error`: ids of the files of answers, which clients see after the end of the batch.

    `ending`: the status that the batch gets when the files are complete. `owner`, `order`: as of a file. `life`:
    seconds after which files of answers expire; 0: they stay.
    """

    owner: str
    order: int
    output: str
    error: str
    batch: BatchObject
    ending: Ended | None = None
    life: int = 0


def file_id() -> str:
    """A new id of a file, which cannot be guessed."""
    return f"file-{secrets.token_hex(16)}"


def new_batch(asked: BatchRequest, owner: str) -> BatchRecord:
    """The record of a batch that begins now."""
    now, hours = time.time_ns(), int(asked.completion_window[:-1])
    seconds = now // 10**9
    batch = BatchObject(
        f"batch_{secrets.token_hex(16)}",
        asked.endpoint,
        asked.input_file_id,
        asked.completion_window,
        seconds,
        seconds + hours * 3600,
        metadata=asked.metadata,
    )
    life = asked.output_expires_after.seconds if asked.output_expires_after is not None else 0
    return BatchRecord(owner, now, file_id(), file_id(), batch, life=life)


def gone(name: str) -> NotFound:
    """404 for an unknown file."""
    return NotFound(f"there is no file `{name[:200]}` here", param="id", code="file_not_found")


class StoreFull(RequestError):
    """507: there are too many files or batches."""

    status = 507
    kind = "invalid_request_error"
    code_default = "storage_full"


@contextmanager
def room_on_disk() -> Iterator[None]:
    """Raises StoreFull where the block fails because the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        text = f"the disk of this server's `batches_dir` is full ({error.strerror}); delete some files, or try later"
        raise StoreFull(text, code="disk_full") from None
