"""`in=batch:FILE`: asks all prompts of a file, writes the answers as they come, prints statistics at the end."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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


class Batch:
    """One run over `files`. `tokens_of` counts the tokens of a prompt without its template, where that is known."""

    def __init__(
        self, client: ChatClient, model: str, files: Sequence[Path], total: int, tokens_of: Callable[[str], int] | None
    ) -> None:
        self._client, self._model, self._files = client, model, files
        self._total, self._tokens_of = total, tokens_of
        self._saved = self._failed = self._tokens_in = self._tokens_out = 0
        self._last = time.monotonic()  # when an answer was saved last

    async def run(self, interrupts: Interrupts) -> int:
        """Ask all. Returns the exit code: 1 when a prompt has failed, 130 after Ctrl-C."""
        began = time.monotonic()
        rest, code = entries.prompts(self._files), 0
        with entries.open_output(self._files) as output:
            try:
                async with interrupts.interruptible():
                    workers = [self._worker(rest, output) for _ in range(min(AT_ONCE, self._total))]
                    await asyncio.gather(self._show(), *workers)
            except interrupts.Interrupted:
                print(f"interrupted: {self._saved} of {self._total} answers are saved", file=sys.stderr)
                code = 130
        seconds = time.monotonic() - began
        rate = 1 / max(seconds, 1e-3)
        print(f"answers: {output.name}")
        print(f"{self._saved} prompts in {seconds:.1f} s, {self._failed} failed")
        print(f"tokens in:  {self._tokens_in} ({self._tokens_in * rate:.1f}/s)")
        print(f"tokens out: {self._tokens_out} ({self._tokens_out * rate:.1f}/s)", flush=True)
        return code or (1 if self._failed else 0)

    async def _worker(self, rest: Iterator[str], output: TextIO) -> None:
        for text in rest:
            fields: dict[str, object] = {"text": text}
            try:
                answer = await self._patiently(text)
                tokens_in = self._tokens_of(text) if self._tokens_of is not None else answer.tokens_in
                fields |= {"response": answer.text, "tokens_in": tokens_in, "tokens_out": answer.tokens_out}
                fields |= {"elapsed_ms": round(answer.seconds * 1000), "finish_reason": answer.finish}
                self._tokens_in += tokens_in
                self._tokens_out += answer.tokens_out
            except Refused as error:
                fields["error"] = str(error)
                self._failed += 1
            entries.write(output, fields)
            self._saved += 1
            self._last = time.monotonic()

    async def _patiently(self, text: str) -> Answer:
        """Ask again while the server says that there will be room. Raises Refused."""
        began = time.monotonic()
        while True:
            answer = Answer()
            try:
                async for _ in self._client.ask(self._model, [{"role": "user", "content": text}], answer):
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
                while self._saved < self._total:
                    progress.update(task, completed=self._saved)
                    await asyncio.sleep(0.1)
            return
        said = time.monotonic()
        while self._saved < self._total:
            await asyncio.sleep(0.1)
            if time.monotonic() - said >= SAY:
                said = time.monotonic()
                print(f"saved {self._saved} of {self._total}", file=sys.stderr, flush=True)
