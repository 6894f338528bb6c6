"""The program that compiles grammars of clients to see whether they can be had: `python -m dynamod.structured.child`.

A process of its own, because some small grammars use up the stack or keep a thread busy for minutes, and neither can be
stopped from within. It reads a grammar per line and writes a `Verdict` per line. The kernel ends it by SIGPROF when
one takes more than `SECONDS` of CPU time, and by SIGALRM without a request for `IDLE` seconds.
"""

import resource
import signal
import sys
import threading

import msgspec

from dynamod.message.worker import Grammar

from .place import place

SECONDS = 1.0
"""CPU time for one grammar."""
IDLE = 60
"""Seconds without a question after which the process ends."""
STACK = 2**21
"""Bytes; less than a worker's threads have, so that what passes here passes there."""
MEMORY = 2**31


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """`error`: why the grammar cannot be compiled, empty when it can. `place`: the part of a schema that it is."""

    error: str
    place: str = ""


def _verdict(grammar: Grammar) -> Verdict:
    from .probe import problem, schema_problem  # whoever asks imports this module, too, and needs no compiler

    error, where = problem(grammar)
    if not error or where or grammar.kind != "json":
        return Verdict(error, where)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the grammar has had its time
    return Verdict(error, place(msgspec.json.decode(grammar.text), error, schema_problem))


def _serve() -> None:
    _verdict(Grammar("regex", "a"))  # loads what is needed, which is no grammar's time
    read, write = sys.stdin.buffer, sys.stdout.buffer
    signal.alarm(IDLE)
    while line := read.readline():
        signal.alarm(0)
        grammar = msgspec.json.decode(line, type=Grammar)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            verdict = _verdict(grammar)
        except BaseException as error:  # the library's panics are no `Exception`
            verdict = Verdict(f"the compiler failed: {type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_PROF, 0)
        write.write(msgspec.json.encode(verdict) + b"\n")
        write.flush()
        signal.alarm(IDLE)


def main() -> None:
    """Answer until standard input ends."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of a terminal is for those who ask
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
