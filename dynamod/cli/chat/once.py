"""`in=stdin`: all of stdin is one prompt; the answer goes to stdout."""

import sys

from dynamod.cli.interrupt import Interrupts

from .client import Answer, ChatClient, Refused


async def answer_once(prompt: str, interrupts: Interrupts, client: ChatClient, model: str) -> int:
    """Ask, print the answer as it comes. Returns the exit code."""
    answer = Answer()
    try:
        async with interrupts.interruptible():
            await client.show(model, [{"role": "user", "content": prompt}], answer)
    except Refused as error:
        print(f"\nerror: {error}" if answer.pieces else f"error: {error}", file=sys.stderr)
        return 1
    except interrupts.Interrupted:
        return 130
    if not answer.text.endswith("\n"):
        print(flush=True)
    return 0
