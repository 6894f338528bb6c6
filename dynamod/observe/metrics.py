"""Statistics structs as metric families of prometheus_client, which is imported by the first scrape of a process."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of `exposition`."""

Row = tuple[str, dict[str, str], msgspec.Struct]
"""Prefix of the names, labels, numbers."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Buckets(msgspec.Struct, frozen=True):
    """A histogram: counts per bucket (upper bounds inclusive, one more count for what lies above all), and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


def families(rows: Iterable[Row]) -> "list[Metric]":
    """One family per field of the rows' structs: `{prefix}_{field}`, of all rows that have it.

    Numbers become samples, booleans 0 or 1, `Buckets` histograms, nested structs join their names by `_`; None and
    everything else is left out. A field whose name ends in `_total`, or whose type is `dynamod.actor.Total`, is a
    counter. A family's help is the first line of the docstring of the struct that has the field. Of two samples with
    the same name and labels the first stays.
    """
    from prometheus_client.core import Metric

    found: dict[tuple[str, str], Metric] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for prefix, labels, struct in rows:
        for name, kind, owner, value in _numbers(prefix, struct):
            family = found.setdefault((name, kind), Metric(name, _help(owner), kind))
            for suffix, more, number in _samples(kind, value):
                every = {**labels, **more}
                if (name + suffix, key := frozenset(every.items())) not in seen:
                    seen.add((name + suffix, key))
                    family.add_sample(name + suffix, every, number)
    return list(found.values())
