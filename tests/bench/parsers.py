#!/usr/bin/env python3
"""What a parser of reasoning and calls of tools costs a token of text without markers, by format.

parsers.py [--tokens 200000]

Microseconds of CPU time per token: of plain words, and of words among which `<`, `{` and `[` begin what is no marker.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dynamod.parsers import ToolSpec, make_parser
from dynamod.parsers.grammars import GRAMMARS

WORDS = (" word", "ing", " the", " a", ",", " foo", " bar\n")
NEAR = (" a", " <", " b", " {x", "}", " [1", "]", " <b>", ".")
TOOLS = [ToolSpec("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}})]


def cost(name: str, text: tuple[str, ...], tokens: int) -> float:
    parser = make_parser(name, None, TOOLS, seed="s", prompt="", special=("<|im_start|>", "<|im_end|>"))
    pieces = ["Now", *itertools.islice(itertools.cycle(text), tokens)]
    begun = time.process_time()
    for piece in pieces:
        parser.feed(piece)
    return (time.process_time() - begun) / tokens * 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=200_000)
    tokens = arguments.parse_args().tokens
    for name in GRAMMARS:
        print(f"{name:<16} words {cost(name, WORDS, tokens):.2f} us, near markers {cost(name, NEAR, tokens):.2f} us")


if __name__ == "__main__":
    main()
