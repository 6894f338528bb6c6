"""`in=batch:FILE`: asks all prompts of files, writes the answers in their order, prints statistics at the end."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dynamod.cli.interrupt import Interrupts
from dynamod.cli.output import leave_stdout
from dynamod.ingress.batch_lines import Entry, answer_row, failure_row
from dynamod.message.errors import UserError

from .answers import InOrder, Outputs
from .client import ChatClient, Refused, Response
from .entries import Job

AT_ONCE = 64
"""Prompts in work: enough to fill an engine's batch, few enough that none waits for longer than the server's clocks."""
WINDOW = 4 * AT_ONCE
"""Prompts that may be asked before the first of them is answered. What is finished out of order waits in memory."""
SAY = 5.0
"""Seconds between two lines of progress where no bar can be drawn."""
GIVE_UP = 600.0
"""Seconds without any answer after which a prompt that finds no room is given up."""

Numbered = tuple[int, Job, Entry]


class Batch:
    """One run over `jobs`. `fields` go with every prompt, not with requests in OpenAI's form.

    `tokens_of` counts the tokens of a prompt without its template, where that is known.
    """

    def __init__(
        self,
        client: ChatClient,
        model: str,
        jobs: Sequence[Job],
        fields: Mapping[str, Any],
        tokens_of: Callable[[str], int] | None,
    ) -> None:
        self._client, self._model, self._jobs = client, model, jobs
        self._fields, self._tokens_of = fields, tokens_of
        self._total = sum(job.total - job.done for job in jobs)
        self._saved = self._failed = self._tokens_in = self._tokens_out = 0
        self._last = time.monotonic()  # when an answer came last

    async def run(self, interrupts: Interrupts) -> int:
        """Ask all. Returns the exit code: 1 when a prompt has failed, 130 when it was interrupted. Raises UserError."""
        began, code = time.monotonic(), 0
        rest = ((number, job, entry) for number, (job, entry) in enumerate(self._entries()))
        with Outputs() as outputs:

            def save(line: tuple[Job, dict[str, Any]]) -> None:
                outputs.write(*line)
                self._saved += 1

            answers = InOrder(save, WINDOW)
            try:
                async with interrupts.interruptible():
                    workers = [self._worker(rest, answers) for _ in range(min(AT_ONCE, self._total))]
                    await asyncio.gather(self._show(), *workers)
            except interrupts.Interrupted:
                text = f"interrupted: {self._saved} of {self._total} answers are saved; --resume continues"
                print(text, file=sys.stderr, flush=True)
                code = 130
        seconds = time.monotonic() - began
        rate = 1 / max(seconds, 1e-3)
        lines = [
            f"answers: {job.output}{f' ({job.done} were there already)' if job.done else ''}" for job in self._jobs
        ]
        lines += [
            f"{self._saved} prompts in {seconds:.1f} s, {self._failed} failed",
            f"tokens in:  {self._tokens_in} ({self._tokens_in * rate:.1f}/s)",
            f"tokens out: {self._tokens_out} ({self._tokens_out * rate:.1f}/s)",
        ]
        try:
            print(*lines, sep="\n", flush=True)
        except BrokenPipeError:  # the reader needs no statistics
            leave_stdout()
        except OSError as error:
            leave_stdout()
            places = ", ".join(str(job.output) for job in self._jobs)
            raise UserError(f"stdout: {error.strerror}", f"the answers are in {places}") from None
        return code or (1 if self._failed else 0)

    def _entries(self) -> Iterator[tuple[Job, Entry]]:
        return ((job, entry) for job in self._jobs for entry in job.left())

    async def _worker(self, rest: Iterator[Numbered], answers: InOrder[tuple[Job, dict[str, Any]]]) -> None:
        for number, job, entry in rest:
            await answers.room(number)
            line = await (self._prompt(entry) if entry.body is None else self._request(entry, entry.body))
            self._last = time.monotonic()
            answers.put(number, (job, line))

    async def _prompt(self, entry: Entry) -> dict[str, Any]:
        """Ask a text; the line of its answer."""
        text, began = str(entry.keys["text"]), time.monotonic()
        body = {**self._fields, "model": self._model, "messages": [{"role": "user", "content": text}]}
        try:
            response = await self._patiently("/v1/chat/completions", body)
            choice = response.chosen()
        except Refused as error:
            self._failed += 1
            return {**entry.keys, "error": str(error)}
        tokens_in = self._tokens_of(text) if self._tokens_of is not None else response.tokens("prompt_tokens")
        self._count(tokens_in, response)
        return {
            **entry.keys,
            "response": choice["message"]["content"] or "",
            "tokens_in": tokens_in,
            "tokens_out": response.tokens("completion_tokens"),
            "elapsed_ms": round((time.monotonic() - began) * 1000),
            "finish_reason": choice["finish_reason"],
        }

    async def _request(self, entry: Entry, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a request in OpenAI's form; the line of its answer in the same form."""
        try:
            response = await self._patiently(entry.url, {"model": self._model, **body})
        except Refused as error:
            self._failed += 1
            return failure_row("", entry.keys, "request_failed", str(error))
        if response.status == 200:
            self._count(response.tokens("prompt_tokens"), response)
        else:
            self._failed += 1
        name = f"batch_req_{response.request}"
        return answer_row(name, entry.keys, response.status, response.request, response.body)

    def _count(self, tokens_in: int, response: Response) -> None:
        self._tokens_in += tokens_in
        self._tokens_out += response.tokens("completion_tokens")

    async def _patiently(self, url: str, body: Mapping[str, Any]) -> Response:
        """Ask again while the server says that there will be room, or is being replaced. Raises Refused."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - max(began, self._last)
            try:
                response = await self._client.post(url, body)
            except Refused as error:
                if error.retry_after is None or waited > GIVE_UP:
                    raise
                await asyncio.sleep(error.retry_after)
            else:
                if response.retry_after is None or waited > GIVE_UP:
                    return response
                await asyncio.sleep(response.retry_after)

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
