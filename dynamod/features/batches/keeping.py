"""Batches whose requests come in one body: the input is kept as a file, as an upload would be."""

import asyncio
import os
import time
from typing import TYPE_CHECKING, cast

from .file_endpoints import store_of
from .quotas import check_batches, check_files
from .records import BatchRecord, BatchRequest, FileObject, Url, file_id, new_batch, room_on_disk

if TYPE_CHECKING:
    from dynamod.ingress.api.endpoint import Frontend

WINDOW = "24h"


async def keep_batch(frontend: "Frontend", owner: str, lines: bytes, endpoint: str, filename: str) -> BatchRecord:
    """Keep the lines as a file, and a batch of them, which a `Runner` finds. `lines`: in OpenAI's batch form.

    Raises NotFound where batches are off, QuotaExceeded, StoreFull.
    """
    store, settings = store_of(frontend), frontend.settings

    def keep() -> BatchRecord:
        store.check_count()
        store.check_room(len(lines))
        check_files(settings, store.files(owner), len(lines))
        check_batches(settings, store.unfinished(), owner)
        name = file_id()
        part = store.upload(name)
        try:
            with room_on_disk(), store.create(part) as file:
                left = memoryview(lines)
                while left:
                    left = left[file.write(left) or 0 :]
                os.fsync(file.fileno())
            store.show(part, owner, FileObject(name, len(lines), int(time.time()), filename, "batch"))
        finally:
            part.unlink(missing_ok=True)
        record = new_batch(BatchRequest(name, cast("Url", endpoint), WINDOW), owner)
        try:
            with room_on_disk():
                store.add_batch(record)
        except BaseException:
            store.delete(name, owner)
            raise
        return record

    return await asyncio.to_thread(keep)
