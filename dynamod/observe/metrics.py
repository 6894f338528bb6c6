"""Statistics structs as Prometheus text (format 0.0.4). Actors, mailboxes and stores show their structs by this."""

import math
import re
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import accumulate
from typing import Any

import msgspec

COUNTERS = frozenset(
    {
        "abandoned",
        "connects",
        "accepted",
        "cancelled",
        "deltas",
        "doubled",
        "dropped",
        "duplicates",
        "evictions",
        "frames",
        "full",
        "handled",
        "hits",
        "landed",
        "late",
        "merged",
        "misses",
        "preemptions",
        "received",
        "refused",
        "requests",
        "restarts",
        "sent",
        "slow",
        "revoked",
        "steps",
        "taken",
        "tokens",
    }
)
"""Fields that only grow although their names do not end in `_total`; the metric's name does."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ODD = re.compile(r"[^a-zA-Z0-9_]")


class Buckets(msgspec.Struct, frozen=True):
    """A histogram: counts per bucket (upper bounds inclusive, one more count for what lies above all), and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


def render(prefix: str, rows: Iterable[tuple[dict[str, str], msgspec.Struct]]) -> str:
    """Rows of labels and struct as text lines, one family per field: `{prefix}_{field}`.

    Numbers become samples, booleans 0 or 1, `Buckets` histograms, nested structs join their names by `_`; None and
    everything else is left out. A family's help is the first line of the docstring of the struct that has the field.
    Of two samples with the same name and labels the first stays.
    """
    families: dict[str, _Family] = {}
    for labels, struct in rows:
        shown = _labels(labels)
        for name, kind, owner, value in _numbers(prefix, struct):
            family = families.get(name)
            if family is None:
                family = families[name] = _Family(name, kind, _help(owner))
            if isinstance(value, Buckets):
                family.histogram(labels, shown, value)
            else:
                family.samples.setdefault(shown, value)
    return "".join(line for family in families.values() for line in family.lines())


def labelled(text: str, key: str, value: str) -> str:
    """Prometheus text with one label more in front of every sample's own."""
    label = f'{key}="{_escaped(value)}"'
    lines: list[str] = []
    for line in StringIO(text):  # a line ends at \n alone: labels may hold whatever else str.splitlines takes for one
        name, brace, rest = line.partition("{")
        if line.startswith("#") or not line.strip():
            lines.append(line)
        elif brace:
            lines.append(f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}")
        else:
            name, _, rest = line.partition(" ")
            lines.append(f"{name}{{{label}}} {rest}")
    return "".join(lines)


def merge(texts: Iterable[str]) -> str:
    """Texts of `render` as one: every family once, with the samples of all."""
    families: dict[str, list[str]] = {}
    for text in texts:
        known = False
        for line in StringIO(text):
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                known = name in families
                lines = families.setdefault(name, [])
            if not (known and line.startswith("# ")):
                lines.append(line)
    return "".join(line for lines in families.values() for line in lines)


class _Family:
    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name, self.kind, self.text = name, kind, text
        self.samples: dict[str, float] = {}  # by what stands behind the name

    def histogram(self, labels: dict[str, str], shown: str, value: Buckets) -> None:
        """The samples of a histogram, unless they are there already."""
        if f"_count{shown}" in self.samples:
            return
        bounds = (*map(_number, map(float, value.bounds)), "+Inf")
        for bound, count in zip(bounds, accumulate(value.counts), strict=True):
            self.samples[f"_bucket{_labels({**labels, 'le': bound})}"] = count
        self.samples[f"_count{shown}"] = sum(value.counts)
        self.samples[f"_sum{shown}"] = value.sum

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.text}\n"
        yield f"# TYPE {self.name} {self.kind}\n"
        for rest, value in self.samples.items():
            yield f"{self.name}{rest} {_number(value)}\n"


def _numbers(path: str, struct: msgspec.Struct) -> Iterator[tuple[str, str, type[msgspec.Struct], float | Buckets]]:
    """Name, kind, owner and value of each number and histogram in the struct and in structs below it."""
    for field, value in msgspec.structs.asdict(struct).items():
        below = f"{path}_{_CAMEL.sub('_', field).lower()}"
        if isinstance(value, int | float):
            counts = field in COUNTERS or field.endswith("_total")
            yield _name(below, counts), "counter" if counts else "gauge", type(struct), value
        elif isinstance(value, Buckets):
            yield _name(below, False), "histogram", type(struct), value
        elif isinstance(value, msgspec.Struct):
            yield from _numbers(below, value)


def _name(path: str, counts: bool) -> str:
    name = _ODD.sub("_", path).lstrip("_")
    name = f"_{name}" if name[:1].isdigit() else name
    return f"{name}_total" if counts and not name.endswith("_total") else name


def _help(owner: type[msgspec.Struct]) -> str:
    first = (owner.__doc__ or owner.__name__).strip().partition("\n")[0].strip()
    return first.replace("\\", "\\\\")


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    named = {_label(key): _escaped(value) for key, value in sorted(labels.items())}
    return "{" + ",".join(f'{key}="{value}"' for key, value in named.items()) + "}"


def _label(key: str) -> str:
    name = _ODD.sub("_", key).lstrip("_")  # two at the begin are reserved
    return f"_{name}" if name[:1].isdigit() or not name else name


def _escaped(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return int.__repr__(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return float.__repr__(value)
