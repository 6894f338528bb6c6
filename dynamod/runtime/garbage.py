"""The collector of reference cycles while a process starts: it would look again and again at what stays."""

import asyncio
import gc

PAUSE = 2.0
"""Seconds for which it is off, at most, once the event loop runs."""
SETTLED = 1.0
"""Seconds from a start to `settle`: the first answers have the processor before."""


def pause() -> None:
    """Collect nothing until `resume_later` or `settle`. A fifteenth of a start's CPU time was spent on that."""
    gc.disable()


def resume_later() -> None:
    """To be called when the event loop runs: a start that takes long, as that of a large engine, makes garbage."""
    asyncio.get_running_loop().call_later(PAUSE, gc.enable)


def settle() -> None:
    """What the start has made stays: the collector need not look at it again, and may come less often.

    So does what the start has left in cycles, 0.3 MB in an ingress: to find that takes 20 to 80 ms, and streams wait.
    """
    gc.freeze()
    # A burst of requests comes before a collection; one of all young objects is still short: streams wait meanwhile.
    gc.set_threshold(15_000, 0, 100)
    gc.enable()
