"""The path of a model, which is downloaded if need be: in a process of its own, so that nothing waits for it."""

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from dynamod.message.errors import DynamodError, UserError

from . import download
from .cache import cached
from .download import Failed, Found, Line, Progress
from .locate import local
from .reference import reference
from .selection import bytes_text

log = logging.getLogger("dynamod.models")

END = 1.0
"""Seconds for the process to end."""


LOOK = 5.0
"""Seconds to learn whether the hub has a model, with the start of the process that asks."""


def look(name: str, environ: Mapping[str, str], *, weights: bool = True, within: float = LOOK) -> None:
    """Return when `name` (as `locate` has it) is here or on the hub, and when no answer has come within seconds.

    Only a model that is not here costs time. `environ`: of the process that will download it. Blocks. Raises UserError
    for a model that is neither here nor on the hub, and for a hub that is known not to be reached.
    """
    wanted = None if local(name) is not None else reference(name)
    if wanted is None or cached(wanted, weights=weights) is not None:
        return
    argv = [sys.executable, "-m", download.__name__, "--look", *([] if weights else ["--no-weights"]), "--", name]
    # a process, since neither the resolution of names nor the library's own retries can be given a deadline
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=within, env=environ, check=False
        )
        line = msgspec.json.decode(done.stdout, type=Line)
    except (subprocess.TimeoutExpired, msgspec.DecodeError):  # the process that downloads will say what is wrong
        return
    if isinstance(line, Failed):
        raise UserError(line.error, line.hint)


def _nobody(_text: str) -> None:
    """Progress is not shown."""


async def fetch(
    name: str,
    tell: Callable[[str], None] = _nobody,
    *,
    weights: bool = True,
    progress: Callable[[Progress], Awaitable[None]] | None = None,
) -> Path:
    """The folder or GGUF file that `name` means (as `locate` has it), downloaded when it is not here.

    `tell` gets a line of progress twice a second: bytes, total, speed; `progress`, which is awaited, gets the numbers.
    `weights` false: tokenizer and template are enough. A caller that is cancelled ends the download at once. Raises
    UserError.
    """
    if (path := await asyncio.to_thread(local, name)) is not None:  # it may have to be converted
        return path
    argv = ["-m", download.__name__, *([] if weights else ["--no-weights"]), "--", name]
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(  # in its own session: at Ctrl-C this process ends it
        sys.executable, *argv, stdin=nothing, stdout=pipe, start_new_session=True
    )
    assert process.stdout is not None
    answered = False
    try:
        async for text in process.stdout:
            line = msgspec.json.decode(text, type=Line)
            answered = not isinstance(line, Progress)
            match line:
                case Progress():
                    if progress is not None:
                        await progress(line)
                    tell(f"downloading {name}: {_text(line)}")
                case Found(found, loaded):
                    if loaded is not None:
                        log.info("downloaded %s: %s", name, bytes_text(loaded))
                    return Path(found)
                case Failed(error, hint):
                    raise UserError(error, hint)
        raise DynamodError(f"the download of {name} ended with code {await process.wait()}")
    finally:
        await _end(process, answered)


def _text(progress: Progress) -> str:
    of = f" of {bytes_text(progress.total)}" if progress.total is not None else ""
    return f"{bytes_text(progress.done)}{of}, {bytes_text(progress.speed)}/s"


async def _end(process: asyncio.subprocess.Process, answered: bool) -> None:
    """Wait for its end, which comes at once when it is asked, and on its own after its answer.

    One that ends on its own is not asked: `terminate` would look at it, and asyncio might find its exit code gone.
    """
    if not answered:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        await _ended(process)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):  # a process of its own may have its output open
            await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the process and of its output: asyncio knows the exit code first, and has the pipe open then.

    Raises TimeoutError after END seconds.
    """
    async with asyncio.timeout(END):
        await process.communicate()
