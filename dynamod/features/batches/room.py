"""No room for files: what clients are told when there are too many, or when the disk is full."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dynamod.message.errors import RequestError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
