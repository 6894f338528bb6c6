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

QUIET = (
    *("aiohttp", "asyncio", "filelock", "fsspec", "hpack", "httpcore", "httpx", "huggingface_hub"),
    *("markdown_it", "nats", "numba", "urllib3"),
)
"""Libraries that log too much at debug. Naming one in the filter, or TRACE as the level of all, undoes it."""

PACKAGES = frozenset(("dynamod", "dynamo", *QUIET))
"""Targets without a dot that may stand without a level; any other such word is a level that was misspelled."""

_NAMES = ((logging.ERROR, "ERROR"), (logging.WARNING, "WARN"), (logging.INFO, "INFO"), (logging.DEBUG, "DEBUG"))
_TARGET = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


@dataclass(frozen=True, slots=True)
class Filter:
    """The level of everything, and of single targets and what is below them."""

    default: int = logging.INFO
    targets: Mapping[str, int] = field(default_factory=dict[str, int])


def level_name(number: int) -> str:
    """ERROR, WARN, INFO, DEBUG or TRACE. CRITICAL is an ERROR, as in the seeds."""
    for least, name in _NAMES:
        if number >= least:
            return name
    return "TRACE"


def parse_level(word: str, source: str) -> int:
    """One level word. Raises UserError naming `source`, the variable or option it came from."""
    level = LEVELS.get(word.strip().lower())
    if level is None:
        raise UserError(f"{source}: unknown log level {word.strip()!r}", SYNTAX)
    return level


def parse(text: str, source: str = "DYN_LOG", default: Filter | None = None) -> Filter:
    """`dynamod.actor=trace,warn`: later words win, `::` may stand for `.`, a bare target means all of it (trace).

    What the text leaves open comes from `default`. A bare target has a dot or is one of PACKAGES. Raises UserError.
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
        elif not equals and "." not in name and name not in PACKAGES:
            parse_level(name, source)
        else:
            targets[name] = parse_level(level, source) if equals and level.strip() else TRACE
    return Filter(everything, targets)


_applied: set[str] = set()


def apply(chosen: Filter) -> None:
    """Give the loggers their levels; levels that an earlier call set and this call does not are reset."""
    logging.addLevelName(TRACE, "TRACE")
    quiet = QUIET if chosen.default > TRACE else ()
    levels = {**dict.fromkeys(quiet, max(logging.WARNING, chosen.default)), **chosen.targets}
    for name in _applied | levels.keys():
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
    _applied.clear()
    _applied.update(levels)
    logging.getLogger().setLevel(chosen.default)
