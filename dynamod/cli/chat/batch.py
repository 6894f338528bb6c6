"""`in=batch:FILE`: asks all prompts of a file, writes the answers as they come, prints statistics at the end."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from dynamod.cli.interrupt import Interrupts

from . import entries
from .client import Answer, ChatClient, Refused

AT_ONCE = 64
"""Prompts in work: enough to fill an engine's batch, few enough that none waits for longer than the server's clocks."""
SAY = 5.0
"""Seconds between two lines of progress where no bar can be drawn."""
GIVE_UP = 600.0
"""Seconds without any answer after which a prompt that finds no room is given up."""


@dataclass(slots=True)
class Totals:
    """What has been done."""

    saved: int = 0
    failed: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def text(self, seconds: float) -> str:
        """The lines at the end."""
        rate = 1 / max(seconds, 1e-3)
        return (
            f"{self.saved} prompts in {seconds:.1f} s, {self.failed} failed\n"
            f"tokens in:  {self.tokens_in} ({self.tokens_in * rate:.1f}/s)\n"
            f"tokens out: {self.tokens_out} ({self.tokens_out * rate:.1f}/s)"
        )


class Batch:
    """One run over `files`. `tokens_of` counts the tokens of a prompt without its template, where that is known."""

    def __init__(
        self, client: ChatClient, files: Sequence[Path], total: int, tokens_of: Callable[[str], int] | None
    ) -> None:
        self._client, self._files, self._total, self._tokens_of = client, files, total, tokens_of
        self._totals = Totals()
        self._last = time.monotonic()  # when an answer was saved last

    async def run(self, interrupts: Interrupts, wanted: str) -> int:
        """Ask all. Returns the exit code: 1 when a prompt has failed, 130 after Ctrl-C."""
        began = time.monotonic()
        output = entries.open_output(self._files)
        code = 0
        async with self._client:
            model = await self._client.model(wanted)
            rest = entries.prompts(self._files)
            try:
                async with interrupts.interruptible():
                    workers = [self._worker(model, rest, output) for _ in range(min(AT_ONCE, self._total))]
                    await asyncio.gather(self._show(), *workers)
            except interrupts.Interrupted:
                print(f"interrupted: {self._totals.saved} of {self._total} answers are saved", file=sys.stderr)
                code = 130
            finally:
                output.close()
        print(f"answers: {output.name}\n{self._totals.text(time.monotonic() - began)}", flush=True)
        return code or (1 if self._totals.failed else 0)

    async def _worker(self, model: str, rest: Iterator[str], output: TextIO) -> None:
        for text in rest:
            fields: dict[str, object] = {"text": text}
            answer = Answer()
            try:
                answer = await self._patiently(model, text)
                tokens_in = self._tokens_of(text) if self._tokens_of is not None else answer.tokens_in
                fields |= {"response": answer.text, "tokens_in": tokens_in, "tokens_out": answer.tokens_out}
                fields |= {"elapsed_ms": round(answer.seconds * 1000), "finish_reason": answer.finish}
                self._totals.tokens_in += tokens_in
                self._totals.tokens_out += answer.tokens_out
            except Refused as error:
                fields["error"] = str(error)
                self._totals.failed += 1
            entries.write(output, fields)
            self._totals.saved += 1
            self._last = time.monotonic()

    async def _patiently(self, model: str, text: str) -> Answer:
        """Ask again while the server says that there will be room. Raises Refused."""
        began = time.monotonic()
        while True:
            answer = Answer()
            try:
                async for _ in self._client.ask(model, [{"role": "user", "content": text}], answer):
                    pass
                return answer
            except Refused as error:
                if error.retry_after is None or time.monotonic() - max(began, self._last) > GIVE_UP:
                    raise
                await asyncio.sleep(error.retry_after)

    async def _show(self) -> None:
        """Say how far it is."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task("prompts", total=self._total)
                while self._totals.saved < self._total:
                    progress.update(task, completed=self._totals.saved)
                    await asyncio.sleep(0.1)
            return
        said = time.monotonic()
        while self._totals.saved < self._total:
            await asyncio.sleep(0.1)
            if time.monotonic() - said >= SAY:
                said = time.monotonic()
                print(f"saved {self._totals.saved} of {self._total}", file=sys.stderr, flush=True)
