"""Whether the grammars of clients can be compiled, asked of a process that may die of them."""

import asyncio
import hashlib
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict

import msgspec

from dynamod.message.errors import BadRequest, Overloaded
from dynamod.message.worker import Grammar
from dynamod.observe.bounded import bounded

from . import child
from .child import SECONDS, Verdict
from .demand import JSON_OBJECT

KEPT = 4096
"""Verdicts that are remembered."""
WAIT = 15.0
"""Seconds for an answer of the process, which may have to start on a busy machine."""
_LONGEST = 400
"""Characters of the compiler's own text that a client gets."""

_CRASHED = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
TOO_SLOW = Verdict(f"it takes more than {SECONDS:g} s to compile")
TOO_COMPLEX = Verdict(
    "it is too complex to compile: its parts refer to each other too deeply, or it needs too much memory"
)


class Compiler:
    """The process, started when it is needed. Calls block, one at a time; safe from several threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def verdict(self, grammar: Grammar) -> Verdict:
        """Whether a grammar can be compiled. Raises Overloaded when the process does not answer."""
        line = msgspec.json.encode(grammar) + b"\n"
        with self._lock:
            for _ in range(2):
                answer = self._ask(line)
                if answer:
                    return msgspec.json.decode(answer, type=Verdict)
                code = self._end()
                if code == -signal.SIGPROF:
                    return TOO_SLOW
                if code in _CRASHED:
                    return TOO_COMPLEX
                # Else nobody had asked for a while, or somebody has ended it.
        raise Overloaded("grammars cannot be compiled now", code="no_compiler")

    def _ask(self, line: bytes) -> bytes:
        """The answer; empty when the process has ended."""
        process = self._process
        if process is None:
            if self._closed:
                raise Overloaded("this server is stopping")
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", child.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        if not select.select([process.stdout], [], [], WAIT)[0]:
            self._end()
            raise Overloaded(f"a grammar was not compiled within {WAIT:g} s", code="no_compiler")
        return process.stdout.readline()

    def _end(self) -> int:
        """The exit code of the process, which is killed if it has none."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return 0

    def close(self) -> None:
        """End the process."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()  # a call that waits for it ends, too
        with self._lock:
            self._end()


class GrammarChecks:
    """Verdicts about grammars, each found once. `compiler` None: one of its own."""

    def __init__(self, compiler: Compiler | None = None) -> None:
        self._compiler = compiler or Compiler()
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = asyncio.Lock()
        bounded(self, "checked grammars", KEPT, lambda one: len(one._known), "grammars")

    async def check(self, field: str, grammar: Grammar) -> None:
        """Refuse what cannot be compiled. `field`: which asks for it. Raises BadRequest, Overloaded."""
        if grammar == JSON_OBJECT:
            return
        key = hashlib.blake2b(msgspec.msgpack.encode(grammar), digest_size=16).digest()
        verdict = self._known.get(key) or await self._verdict(key, grammar)
        self._known[key] = verdict
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        if verdict.error:
            raise refusal(field, verdict)

    async def _verdict(self, key: bytes, grammar: Grammar) -> Verdict:
        async with self._lock:
            known = self._known.get(key)
            return await asyncio.to_thread(self._compiler.verdict, grammar) if known is None else known

    def close(self) -> None:
        """End the process; nothing can be checked any more."""
        self._compiler.close()


def refusal(field: str, verdict: Verdict) -> BadRequest:
    """What the client is told."""
    where = f"{field}{verdict.place}"
    text = " ".join(verdict.error.split())
    return BadRequest(f"`{where}`: {text[:_LONGEST]}", param=where)
