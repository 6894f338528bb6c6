"""Work at one batch until its end, in the process that holds the lock of the batch."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec

from dynamod.ingress.batch_lines import answer_row, failure_row
from dynamod.ingress.large import apart
from dynamod.message.errors import DynamodError, RequestError, UserError
from dynamod.preprocess.parse import LARGE

from .ask import Asker, Later
from .input import BadInput, Input, Place, read_input
from .progress import INPUT, MOST_DEATHS, Begun, Progress
from .records import BatchRecord, Counts, Ended, FileObject, FileRecord, Mistake, Mistakes
from .store import Store

log = logging.getLogger("dynamod.frontend")

LOOK = 0.25
"""Seconds between two checks whether a client has cancelled the batch."""
SAVE = 1.0
"""Seconds between two writes of the counts of a batch."""
LONGEST_WAIT = 30.0
"""Most seconds between two tries of a request that finds no room."""
MODELS = 30.0
"""Seconds in which models must appear after a restart in the middle of a batch."""
SHOWN = 100
"""Mistakes of the input in the object of a batch; the error file has all mistakes."""
DEADLY = "server_died"
"""Code of the error of a line at which two processes have died."""
YIELD = 200
"""Lines that are written between two pauses for other work."""


class Work:
    """`run` returns at the end of the batch. `at_once`: limit of requests in flight of all batches of this process.

    `alone`: held while a line is asked at which a process has died, so that the next death is attributed to this line.
    `width`: most lines of this batch in flight. `longest`: most bytes of a line. `answered`: lines of all batches.
    """

    def __init__(
        self,
        store: Store,
        record: BatchRecord,
        asker: Asker,
        at_once: asyncio.Semaphore,
        alone: asyncio.Lock,
        width: int,
        longest: int,
        answered: Counter[str],
    ) -> None:
        self._store, self._record, self._asker, self._answered = store, record, asker, answered
        self._at_once, self._alone, self._width, self._longest = at_once, alone, width, longest
        self._begun: Begun | None = None
        self._input: Input | None = None
        self._progress: Progress | None = None
        self._fault: Exception | None = None
        self._all = asyncio.Event()
        again = record.batch.in_progress_at is not None
        self._models_until = time.monotonic() + MODELS if again else 0.0

    async def run(self) -> None:
        """Ask all lines, then complete the files. Raises OSError when the record of the batch cannot be written."""
        batch, ending = self._record.batch, self._record.ending
        with ExitStack() as stack:
            if ending is None:
                try:
                    async with asyncio.timeout(max(0.0, batch.expires_at - time.time())) as clock:
                        await asyncio.gather(self._watch(clock), self._ask(clock, stack))
                    ending = "completed"
                except TimeoutError:
                    ending = "cancelled" if self._store.cancelled(batch.id) is not None else "expired"
            if self._fault is not None:
                ending = self._failed(self._fault)
            await self._finish(ending, stack)

    def _failed(self, fault: Exception) -> Ended:
        if not isinstance(fault, DynamodError | OSError):
            log.error("batch %s failed unexpectedly", self._id, exc_info=fault)
        code = fault.code if isinstance(fault, BadInput | RequestError) else None
        said = fault.line() if isinstance(fault, UserError) else str(fault)
        text = said if isinstance(fault, DynamodError | OSError) else "internal error; the server's log has it"
        known = self._record.batch.errors.data if self._record.batch.errors is not None else []
        mistakes = fault.mistakes[:SHOWN] if isinstance(fault, BadInput) else []
        self._record.batch.errors = Mistakes([Mistake(code or "internal_error", text), *mistakes, *known])
        return "failed"

    async def _watch(self, clock: asyncio.Timeout) -> None:
        """Write the counts of the batch; end the batch when a client cancels it or its files become too large."""
        saved = time.monotonic()
        while not self._all.is_set():
            if self._store.cancelled(self._record.batch.id) is not None:
                if not clock.expired():
                    clock.reschedule(0)
                return
            if time.monotonic() - saved >= SAVE and self._progress is not None:
                saved = time.monotonic()
                try:
                    await asyncio.to_thread(self._store.check_room)
                    self._save()
                except (RequestError, OSError) as error:
                    self._stop(error, clock)
                    return
            try:
                async with asyncio.timeout(LOOK):
                    await self._all.wait()
            except TimeoutError:
                pass

    def _stop(self, fault: Exception, clock: asyncio.Timeout) -> None:
        """End all requests of the batch, which fails."""
        self._fault = self._fault or fault
        if not clock.expired():
            clock.reschedule(0)

    def _save(self) -> None:
        if self._progress is not None and self._input is not None:
            counts = self._progress.counts
            self._record.batch.request_counts = Counts(self._input.total, counts.completed, counts.failed)
        self._store.put(self._record)

    async def _ask(self, clock: asyncio.Timeout, stack: ExitStack) -> None:
        """Ask all lines without an answer."""
        try:
            found, progress = await self._prepare(stack)
            begun = self._begun
            assert begun is not None
            places = [place for place in found.places if place.number not in progress.done]
            for place in [one for one in places if begun.deaths(one.number)]:
                async with self._alone:
                    await self._again(found, progress, place, begun)
            rest = iter([place for place in places if not begun.deaths(place.number)])
            await asyncio.gather(*[self._worker(found, progress, rest, clock) for _ in range(self._width)])
        except Exception as error:  # any error must end the other tasks of the batch, too
            self._stop(error, clock)
        finally:
            self._all.set()

    async def _prepare(self, stack: ExitStack) -> tuple[Input, Progress]:
        """Read the input and the answers on disk. Raises BadInput, Unauthorized, OSError."""
        store, record, batch = self._store, self._record, self._record.batch
        self._asker.check_owner(record.owner)
        if self._begun is None:
            self._begun = Begun(store.begun(batch.id), store.create)
            stack.callback(self._begun.close)
        if self._begun.deaths(INPUT) >= MOST_DEATHS:
            raise BadInput(DEADLY, "the server's process has died twice while it read the input")
        with self._begun.working(INPUT):
            path = store.data(batch.input_file_id)
            found = await asyncio.to_thread(read_input, path, (batch.endpoint,), self._longest)
        progress = Progress(store, record, self._answered)
        await asyncio.to_thread(stack.enter_context, progress)
        self._input, self._progress = found, progress
        if found.mistakes:
            batch.errors = Mistakes(found.mistakes[:SHOWN])
        batch.status, batch.in_progress_at = "in_progress", batch.in_progress_at or int(time.time())
        for place, mistake in enumerate(found.mistakes):
            number = mistake.line or 0
            if number not in progress.done:
                row = failure_row(progress.name(number), {"custom_id": None}, mistake.code, mistake.message)
                row["error"]["line"] = number
                progress.write(number, row, good=False)
            if place % YIELD == 0:
                await asyncio.sleep(0)
        self._save()
        return found, progress

    async def _worker(self, found: Input, progress: Progress, rest: Iterator[Place], clock: asyncio.Timeout) -> None:
        try:
            for place in rest:
                await self._line(found, progress, place)
        except Exception as error:  # without this the other workers of the batch would continue
            self._stop(error, clock)

    async def _again(self, found: Input, progress: Progress, place: Place, begun: Begun) -> None:
        """Ask a line at which one process has died; write an error for a line at which two have."""
        if begun.deaths(place.number) < MOST_DEATHS:
            await self._line(found, progress, place)
            return
        entry = await apart(found.entry, place)
        log.error("batch id=%s line=%d is not asked again: the process died at it twice", self._id, place.number)
        text = "the server's process has died twice while it worked at this line"
        progress.write(place.number, failure_row(progress.name(place.number), entry.keys, DEADLY, text), good=False)

    @property
    def _id(self) -> str:
        return self._record.batch.id

    async def _line(self, found: Input, progress: Progress, place: Place) -> None:
        """Ask a line until it is answered. Raises OSError, Unauthorized, UserError for an input that has changed."""
        begun, name = self._begun, progress.name(place.number)
        assert begun is not None
        while True:
            try:
                async with self._at_once:
                    with begun.working(place.number):
                        large = place.length > LARGE
                        entry = await apart(found.entry, place) if large else found.entry(place)
                        status, body = await self._asker.ask(entry, self._record.owner, name, self._models_until)
                break
            except Later as later:
                await asyncio.sleep(min(later.seconds, LONGEST_WAIT))
        row = answer_row(name, entry.keys, status, name, body)
        progress.write(place.number, row, good=status == 200)

    async def _finish(self, ending: Ended, stack: ExitStack) -> None:
        """Make the files of the batch visible and write its final status. Safe to repeat after a crash."""
        store, record, batch, now = self._store, self._record, self._record.batch, int(time.time())
        record.ending = ending
        if ending == "expired":
            await self._expire(stack)
        if ending != "cancelled":
            batch.status, batch.finalizing_at = "finalizing", batch.finalizing_at or now
        if self._progress is not None:
            await asyncio.to_thread(self._progress.sync)
        self._save()
        batch.output_file_id = self._show(record.output, "output")
        batch.error_file_id = self._show(record.error, "error")
        batch.status = ending
        if ending == "cancelled":
            batch.cancelling_at = int(store.cancelled(batch.id) or now)
        setattr(batch, f"{ending}_at", int(time.time()))
        store.put(record)
        store.begun(batch.id).unlink(missing_ok=True)
        log.info("batch id=%s ended as %s: %s", batch.id, ending, batch.request_counts)

    async def _expire(self, stack: ExitStack) -> None:
        """Write an error for each line without an answer."""
        found, progress = self._input, self._progress
        if found is None or progress is None:
            try:
                found, progress = await self._prepare(stack)
            except (BadInput, RequestError):
                return  # no line could have been asked
        text = "the completion window of the batch has passed"
        for place in found.places:
            if place.number not in progress.done:
                row = failure_row(progress.name(place.number), found.entry(place).keys, "batch_expired", text)
                progress.write(place.number, row, good=False)
                if place.number % YIELD == 0:
                    await asyncio.sleep(0)

    def _show(self, name: str, kind: str) -> str | None:
        """Make a file of answers visible to the owner of the batch; return its id, None for an empty file."""
        path, batch = self._store.data(name), self._record.batch
        size = path.stat().st_size if path.exists() else 0
        if not size:
            path.unlink(missing_ok=True)
            return None
        now, life = int(time.time()), self._record.life
        expires = now + life if life else msgspec.UNSET
        made = FileObject(name, size, now, f"{batch.id}_{kind}.jsonl", "batch_output", expires_at=expires)
        self._store.add(FileRecord(self._record.owner, time.time_ns(), made))
        return name
