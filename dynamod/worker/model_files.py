"""A worker's files for an ingress on another machine, which has none of its own to tokenise with."""

import asyncio
import logging

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.worker import Files
from dynamod.transport.base import Reply

log = logging.getLogger("dynamod.engine")

MOST_QUEUED = 4
"""Pieces that may wait for a slow reader. Further pieces are not read before, so that memory is bounded."""
READ_TIMEOUT = 30.0
"""Seconds after which a reader that takes no piece is given up."""
POLL_INTERVAL = 0.01
"""Seconds between looks at a slow reader."""


async def send_files(card: ModelCard, request: Files, reply: Reply) -> None:
    """Answer `request` with the items of `preprocess.model_files`. Whatever goes wrong ends this stream alone."""
    from dynamod.preprocess.model_files import pack  # not needed by engines without a model

    reply.accepted()
    try:
        async with asyncio.timeout(request.seconds_left):
            await _send(await asyncio.to_thread(pack, card), reply)
    except UserError as error:
        log.warning("cannot send the files of model %s: %s", card.name, error.line())
        reply.failed("EngineFailed", error.line())
    except TimeoutError:
        reply.failed("TimedOut", "the files could not be sent in time")
    except Exception as error:
        log.exception("cannot send the files of model %s", card.name)
        reply.failed("EngineFailed", f"{type(error).__name__}: {error}")
    finally:
        reply.failed("EngineFailed", "the worker ended", retry=True)  # cancelled; no effect on a reply that has ended


async def _send(items: list[bytes], reply: Reply) -> None:
    for number, item in enumerate(items, 1):
        async with asyncio.timeout(READ_TIMEOUT):
            while reply.backlog >= MOST_QUEUED and not reply.cancelled:  # noqa: ASYNC110 - a reply has no event for it
                await asyncio.sleep(POLL_INTERVAL)
        if reply.cancelled:
            return
        reply.items((item,), "stop" if number == len(items) else None)
        await asyncio.sleep(0)  # the piece leaves in a frame of its own, with the tokens of others
