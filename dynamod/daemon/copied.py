"""The copy of the installed package from which a daemon and its processes run, so that an upgrade changes nothing."""

import asyncio
import logging
import time

from dynamod.runtime.paths import RunFolder
from dynamod.runtime.snapshot import Snapshot, adopt, installed, remove

log = logging.getLogger("dynamod.daemon")


class CopiedPackage:
    """At most one copy, below the run folder. There is none where the package is imported from a source tree."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._copying: asyncio.Future[None] | None = None
        self._decided = asyncio.Event()  # the copy is taken, or there is none

    async def take(self, folder: RunFolder) -> None:
        """Copy the installed package, and import from the copy from now on."""
        try:
            if (source := installed()) is not None:
                begun, snapshot = time.monotonic(), Snapshot(source, folder.path / "code")
                self._snapshot = snapshot
                self._copying = asyncio.get_running_loop().run_in_executor(None, snapshot.take)
                await asyncio.shield(self._copying)
                if snapshot.usable:
                    adopt(snapshot.folder)
                    log.debug("copied the installed package in %.0f ms", (time.monotonic() - begun) * 1000)
        except OSError as error:
            self._snapshot = None
            log.warning("no copy of the installed package: an upgrade needs a restart of this daemon (%s)", error)
        finally:
            self._decided.set()

    async def for_python(self, python: str) -> Snapshot | None:
        """The copy that processes of an interpreter's environment run from; None: the package as it is installed."""
        await self._decided.wait()
        found = self._snapshot
        return found if found is not None and found.covers(python) and found.usable else None

    async def restore(self) -> None:
        """Copy again the files that another program has removed. Raises OSError."""
        if self._snapshot is not None and self._decided.is_set() and not self._snapshot.usable:
            self._copying = asyncio.get_running_loop().run_in_executor(None, self._snapshot.restore)
            await asyncio.shield(self._copying)

    async def give_back(self) -> None:
        """End a copy that is being made, and remove it. No other is made afterwards."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and self._copying is not None:
            snapshot.abandon()
            await asyncio.wait([self._copying])  # else it would make files after the folder was removed
            snapshot.give_back()
            # After an upgrade the files are deleted for good, and each deletion may wait for the file system's journal.
            for folders in snapshot.folders():
                await asyncio.gather(*(asyncio.to_thread(remove, folder) for folder in folders))
