"""Texts of every format, of any length, that are made to cost its parser the most."""

import re
from collections.abc import Callable

from dynamod.parsers.grammars import grammar_class
from tests.parsers.vectors import Format

Repeat = Callable[[int], str]
CLOSING = re.compile("xyz\n?(<[^>]*>)")
"""The closing tag of the value `xyz`."""


def repeated(piece: str, front: str = "", back: str = "") -> Repeat:
    return lambda size: front + piece * (size // len(piece)) + back


HOSTILE: dict[str, Callable[[str, str], Repeat]] = {
    "openings": lambda opening, call: repeated(opening),
    "openings and words": lambda opening, call: repeated(f"{opening}word "),
    "JSON that ends wrong": lambda opening, call: repeated(f'{opening}{{"x":[', back="}"),
    "lists that end wrong": lambda opening, call: repeated(f"{opening}[[", back="}"),
    "a member each": lambda opening, call: repeated(f'{opening}{{"x":1,', back="}"),
    "strings that end wrong": lambda opening, call: repeated(f'{opening}{{"x', back='"]'),
    "long names": lambda opening, call: repeated("a", f"{opening}"),
    "names behind openings": lambda opening, call: repeated(f"{opening}{'a' * 300}"),
    "numbers behind openings": lambda opening, call: repeated(f'{opening}{{"x":{"1" * 200}'),
    "depth": lambda opening, call: lambda size: f'{opening}{{"x":{"[" * (size // 2)}{"]" * (size // 2)}}}',
    "open": lambda opening, call: repeated("[{", opening),
    "backslashes": lambda opening, call: repeated("\\", f'{opening}{{"x": "'),
    "white space": lambda opening, call: repeated(" \n"),
    "white space behind an opening": lambda opening, call: repeated(" \n", opening),
    "lines behind openings": lambda opening, call: repeated(f"{opening}\n"),
    "near markers": lambda opening, call: repeated("<"),
    "structure": lambda opening, call: repeated('["a",{}],', f'{opening}{{"x":['),
    "calls": lambda opening, call: repeated(call),
    "broken calls": lambda opening, call: repeated(f"{call.replace('xyz', 'a' + chr(34) + 'b')}; "),
    "calls without their end": lambda opening, call: repeated(call[: len(call) * 2 // 3]),
    "beginnings of calls": lambda opening, call: repeated(call[: len(call) // 3]),
    "one long value": lambda opening, call: lambda size: call.replace("xyz", "x" * size),
    "one value of structure": lambda opening, call: lambda size: call.replace("xyz", "[{" * (size // 2)),
    "a bare value of structure": lambda opening, call: (
        lambda size: re.sub("([\"'])xyz\\1", "[{" * (size // 2), call, count=1)
    ),
    "values without closing tags": lambda opening, call: repeated(re.sub("(xyz\n?)[^<]*<[^>]*>", "\\1", call)),
    "a call's end in values": lambda opening, call: repeated(f"{call.partition('xyz')[0]}{call[-20:]}xyz"),
    "a call's end and text": lambda opening, call: repeated("word. ", f"{call.partition('xyz')[0]}{call[-20:]}"),
    "closing tags in values": lambda opening, call: repeated(
        f"{''.join(CLOSING.findall(call)[:1])} word", f"{call.partition('xyz')[0]}{call[-20:]}"
    ),
    "white space behind closing tags in values": lambda opening, call: repeated(
        " \n", f"{call.partition('xyz')[0]}{call[-20:]}{''.join(CLOSING.findall(call)[:1])}"
    ),
    "white space between tags in values": lambda opening, call: repeated(
        f"{''.join(CLOSING.findall(call)[:1])}{' ' * 500}", f"{call.partition('xyz')[0]}{call[-20:]}", back="xyz"
    ),
    "no markers": lambda opening, call: repeated("word, more. "),
}


def hostile(form: Format) -> dict[str, Repeat]:
    """Texts by name."""
    call = form.calls([("find", {"text": "xyz", "count": 1})])
    openings = grammar_class(form.tool).openings
    opening = next((one for one in openings if one in call), openings[0] if openings else call[0])
    made = {name: entry(opening, call) for name, entry in HOSTILE.items()}
    tags = dict.fromkeys(re.findall(r"<[^<>]{1,40}>|\[[A-Z_]+\]", call))
    made |= {f"{tag} many times": repeated(tag, opening) for tag in tags}
    made |= {f"{tag} and CDATA": repeated(tag, call.partition("xyz")[0] + "<![CDATA[") for tag in tags}
    think, end = form.think
    made |= {"calls in a thought": repeated(call, think), "openings in a thought": repeated(opening, think)}
    made |= {"calls and words in a thought": repeated(f"{call}word ", think)}
    made |= {
        "thoughts with a call": repeated(f"{think}{call}{end}"),
        "cut calls in a thought": repeated(call[: len(call) // 2], think),
    }
    return made
