"""How much one owner may keep: files, their bytes, and batches in work."""

from collections.abc import Sequence

import msgspec

from dynamod.http.settings import FrontendSettings
from dynamod.message.errors import RequestError

from .records import BatchRecord, FileObject
from .settings import BatchSettings


class QuotaExceeded(RequestError):
    """429: the owner keeps as much as the quota allows."""

    status = 429
    kind = "insufficient_quota"
    code_default = "insufficient_quota"


def check_files(settings: FrontendSettings, kept: Sequence[FileObject], more: int) -> None:
    """Raise QuotaExceeded when the owner of `kept` may not keep another file of `more` bytes."""
    own = msgspec.convert(settings, BatchSettings, from_attributes=True)
    if own.owner_files and len(kept) >= own.owner_files:
        raise QuotaExceeded(f"the quota `owner_files` is {own.owner_files} files of one key; delete some")
    used = sum(one.bytes for one in kept)
    if own.owner_files_mb and used + more > own.owner_files_mb * 1024 * 1024:
        text = f"the quota `owner_files_mb` is {own.owner_files_mb:g} MB of files of one key; {used} bytes are used"
        raise QuotaExceeded(f"{text}; delete some")


def check_batches(settings: FrontendSettings, unfinished: Sequence[BatchRecord], owner: str) -> None:
    """Raise QuotaExceeded when an owner may have no other batch in work. `unfinished`: batches of all owners."""
    own = msgspec.convert(settings, BatchSettings, from_attributes=True)
    if own.owner_batches and sum(one.owner == owner for one in unfinished) >= own.owner_batches:
        text = f"the quota `owner_batches` is {own.owner_batches} batches in work of one key; wait for some"
        raise QuotaExceeded(f"{text}, or cancel them")
