"""For how long other streams pause while an ingress loads a large tokenizer: `python tools/bench/tokenizer_pause.py`.

A made tokenizer.json like Gemma's (262,144 tokens, some 550,000 merges) is loaded as the ingress does it, in a thread
beside an event loop, once directly and once with the reference in a process. A coroutine and a thread that wake up each
millisecond show the longest pause of each. Each way runs in an interpreter of its own.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dynamod.ingress.memory import trim_memory
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer
from tests.preprocess.large_models import write_model

WAYS = {"direct": False, "process": True}


class Pauses:
    """The longest times without a turn, in seconds, of a thread and of the event loop, since `clear`.

    `computing`: the most CPU time of this process within one pause of the thread, at most the pause. On a busy machine
    it shows what the pause would be on an idle one.
    """

    def __init__(self) -> None:
        self.thread = self.loop = self.computing = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        self._task = asyncio.create_task(self._tick())

    def clear(self) -> None:
        """Begin anew."""
        self.thread = self.loop = self.computing = 0.0

    def _watch(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while not self._ended.wait(0.001):
            now, uses = time.perf_counter(), time.process_time()
            self.thread = max(self.thread, now - last)
            self.computing = max(self.computing, min(uses - used, now - last))
            last, used = now, uses

    async def _tick(self) -> None:
        last = time.perf_counter()
        while not self._ended.is_set():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.loop, last = max(self.loop, now - last), now

    async def close(self) -> None:
        """End both."""
        self._ended.set()
        await self._task


async def load(folder: Path, way: str) -> None:
    """Print a line per step: seconds since the beginning, pauses, memory."""
    pauses, begun = Pauses(), time.perf_counter()

    async def step(name: str, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0.05)
        pauses.clear()
        before = time.perf_counter()
        result = await asyncio.to_thread(function)
        took = time.perf_counter() - before
        await asyncio.sleep(0.005)
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        peak, resident = (int(line[1]) / 1e3 for line in lines if line[0] in ("VmHWM:", "VmRSS:"))
        print(
            f"{way:8} {name:22} {took * 1e3:6.0f} ms, at {time.perf_counter() - begun:5.2f} s; longest pause: "
            f"loop {pauses.loop * 1e3:4.0f} ms, thread {pauses.thread * 1e3:4.0f} ms (computing "
            f"{pauses.computing * 1e3:4.0f} ms); "
            f"memory {resident:4.0f} MB, peak {peak:4.0f} MB",
            flush=True,
        )
        return result

    source = await step("describe", lambda: open_source(folder))
    apart = WAYS[way]
    tokenizer = await step("load", lambda: Tokenizer.from_source(source, use_fast_backend=False, apart=apart))
    await step("first prompt", lambda: tokenizer.encode("Hello world"))
    await step("fast backend", tokenizer.use_fast_backend)
    await step("return memory", trim_memory)
    await pauses.close()


def main() -> None:
    """Make the model, and load it each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder in place of the made one")
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help="load once in this interpreter (needs --model)")
    a = parser.parse_args()
    if a.way:
        asyncio.run(load(a.model, a.way))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = a.model or write_model(Path(made), a.tokens)
        print(f"{(folder / 'tokenizer.json').stat().st_size / 1e6:.1f} MB")
        for _ in range(a.runs):
            for way in WAYS:
                subprocess.run([sys.executable, __file__, "--model", str(folder), "--way", way], check=True)


if __name__ == "__main__":
    main()
