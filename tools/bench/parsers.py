#!/usr/bin/env python3
"""What a parser of reasoning and calls of tools costs a token of text without markers, by format.

parsers.py [--tokens 200000] [--doublings CHARACTERS [--only FORMAT]]

Microseconds of CPU time per token: of plain words, and of words among which `<`, `{` and `[` begin what is no marker.

`--doublings 1000000`: seconds of CPU time for one text of that many characters, in pieces of four and whole. The ratio
is that of a text and one of half its length: the largest from 32,000 characters on, where the shorter text takes 50 ms.
Where a ratio is above 2.3, the least of up to three measurements of each length counts. Shown is the text that costs
each format the most, out of `tests/parsers/hostile.py`. The last number is the most CPU time between two places at
which a parser lets other streams go on.
"""

import argparse
import itertools
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dynamod.parsers import ToolSpec, make_parser
from dynamod.parsers.grammars import GRAMMARS
from dynamod.parsers.parser import TURN_CHARS
from tests.parsers.hostile import Repeat, hostile
from tests.parsers.vectors import FORMATS, Format

WORDS = (" word", "ing", " the", " a", ",", " foo", " bar\n")
NEAR = (" a", " <", " b", " {x", "}", " [1", "]", " <b>", ".")
ENOUGH, AGAIN = 2.3, 3  # a ratio that is not measured again; measurements at most: caches of a busy machine count, too
TOOLS = [ToolSpec("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}})]


def cost(name: str, text: tuple[str, ...], tokens: int) -> float:
    parser = make_parser(name, None, TOOLS, seed="s", prompt="", special=("<|im_start|>", "<|im_end|>"))
    pieces = ["Now", *itertools.islice(itertools.cycle(text), tokens)]
    begun = time.process_time()
    for piece in pieces:
        parser.feed(piece)
    return (time.process_time() - begun) / tokens * 1e6


def seconds(form: Format, text: str, size: int) -> tuple[float, float]:
    """CPU time of all, and of the longest turn: by the clock other programs of the machine would count too.

    Turns of a text in small pieces are not looked at: reading that clock would cost as much as they do.
    """
    parser = make_parser(form.tool, form.reasoning, TOOLS, seed="s", prompt=form.prompt)
    begun, last, longest = time.process_time(), time.thread_time(), 0.0

    def turn() -> None:
        nonlocal last, longest
        if size < len(text):
            return
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    for at in range(0, len(text), size):
        parser.feed(text[at : at + size], TURN_CHARS)
        turn()
        while parser.waiting:
            parser.feed("", TURN_CHARS)
            turn()
    parser.finish("stop", TURN_CHARS)
    turn()
    while parser.waiting:
        parser.feed("", TURN_CHARS)
        turn()
    return time.process_time() - begun, longest


def doublings(form: Format, repeat: Repeat, most: int, size: int) -> tuple[float, float, float]:
    """Seconds at `most` characters, the largest ratio of a doubling, the longest turn."""
    lengths = [most >> shift for shift in range(6) if most >> shift >= 16_000][::-1]
    taken: list[tuple[float, float]] = [(math.inf, math.inf)] * len(lengths)
    ratio = math.inf
    for _ in range(AGAIN):
        if ratio <= ENOUGH:
            break
        found = [seconds(form, repeat(length), size) for length in lengths]
        taken = [(min(one[0], two[0]), min(one[1], two[1])) for one, two in zip(taken, found, strict=True)]
        pairs = itertools.pairwise(one for one, _ in taken)
        ratio = max((after / before for before, after in pairs if before > 0.05), default=0.0)
    return taken[-1][0], ratio, max(turn for _, turn in taken)


def show_doublings(most: int, only: str | None) -> None:
    for form in {form.tool: form for form in FORMATS.values() if only in (None, form.tool)}.values():
        worst: dict[int, tuple[float, str]] = {}
        ratio = turn = 0.0
        for name, repeat in hostile(form).items():
            for size in (4, most * 2):
                took, grown, held = doublings(form, repeat, most, size)
                worst[size] = max(worst.get(size, (0.0, "")), (took, name))
                ratio, turn = max(ratio, grown), max(turn, held)
        pieces = ", ".join(
            f"{'in fours' if size == 4 else 'whole'} {took:.2f} s ({name})" for size, (took, name) in worst.items()
        )
        print(f"{form.tool:<16} {pieces}, ratio {ratio:.2f}, longest turn {turn * 1000:.0f} ms", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=200_000)
    arguments.add_argument("--doublings", type=int, metavar="CHARACTERS")
    arguments.add_argument("--only", metavar="FORMAT")
    given = arguments.parse_args()
    if given.doublings:
        show_doublings(given.doublings, given.only)
        return
    tokens = given.tokens
    for name in GRAMMARS:
        print(f"{name:<16} words {cost(name, WORDS, tokens):.2f} us, near markers {cost(name, NEAR, tokens):.2f} us")


if __name__ == "__main__":
    main()
