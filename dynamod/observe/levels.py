"""Levels and which logger has which: the syntax of RUST_LOG, applied to stdlib loggers."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dynamod.message.errors import UserError

TRACE = 5
OFF = 100

LEVELS = {
    "off": OFF,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
    # Python's own names
    "critical": logging.CRITICAL,
    "warning": logging.WARNING,
}
SYNTAX = "use a level (error, warn, info, debug, trace, off) or target=level, separated by commas"

QUIET = {
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
    "filelock": logging.WARNING,
    "fsspec": logging.WARNING,
    "hpack": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "huggingface_hub": logging.WARNING,
    "markdown_it": logging.WARNING,
    "nats": logging.WARNING,
    "numba": logging.WARNING,
    "urllib3": logging.WARNING,
}
"""Libraries that log too much at debug. Naming one in the filter, or TRACE as the level of all, undoes it."""

_TARGET = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


@dataclass(frozen=True, slots=True)
class Filter:
    """The level of everything, and of single targets and what is below them."""

    default: int = logging.INFO
    targets: Mapping[str, int] = field(default_factory=dict[str, int])


def level_name(number: int) -> str:
    """ERROR, WARN, INFO, DEBUG or TRACE. CRITICAL is an ERROR, as in the seeds."""
    if number >= logging.ERROR:
        return "ERROR"
    if number >= logging.WARNING:
        return "WARN"
    if number >= logging.INFO:
        return "INFO"
    return "DEBUG" if number >= logging.DEBUG else "TRACE"


def parse_level(word: str, source: str) -> int:
    """One level word. Raises UserError naming `source`, the variable or option it came from."""
    level = LEVELS.get(word.strip().lower())
    if level is None:
        raise UserError(f"{source}: unknown log level {word.strip()!r}", SYNTAX)
    return level


def parse(text: str, source: str = "DYN_LOG", default: Filter | None = None) -> Filter:
    """`dynamod.actor=trace,warn`: later words win, `::` may stand for `.`, a bare target means all of it (trace).

    What the text leaves open comes from `default`. Raises UserError.
    """
    default = default or Filter()
    everything = default.default
    targets = dict(default.targets)
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, level = word.partition("=")
        name = name.strip().replace("::", ".")
        if not equals and name.lower() in LEVELS:
            everything = LEVELS[name.lower()]
        elif not _TARGET.fullmatch(name):
            raise UserError(f"{source}: cannot read {word!r}", SYNTAX)
        else:
            targets[name] = parse_level(level, source) if equals and level.strip() else TRACE
    return Filter(everything, targets)


_applied: set[str] = set()


def apply(chosen: Filter) -> None:
    """Give the loggers their levels; those that an earlier call set and this one does not are reset."""
    logging.addLevelName(TRACE, "TRACE")
    levels: dict[str, int] = {}
    if chosen.default > TRACE:
        levels = {name: max(level, chosen.default) for name, level in QUIET.items()}
    levels.update(chosen.targets)
    for name in _applied - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _applied.clear()
    _applied.update(levels)
    logging.getLogger().setLevel(chosen.default)
