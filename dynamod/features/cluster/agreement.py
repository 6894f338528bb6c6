"""What nodes of a cluster must have in common, and which node differs. Pure."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from .commands import ANSWERS, NO_COMMANDS, NodeRow
from .facts import Fact

MAX_CLOCK_MS = 500.0
"""Milliseconds between a clock and the others above which times in logs and answers mislead."""
CARD_FIELDS = {
    "mdc_sum": ("tokenizer or template differs", "give all workers of a model the same files"),
    "block_size": ("KV block size differs", "give all workers of a model the same block size (--kv-cache-block-size)"),
    "context_length": ("context length differs", "give all workers of a model the same context length"),
}
"""By field of `CardFacts`: what it is, and what to do where it differs."""


class Difference(NamedTuple):
    """`check`: what was compared. `severe`: requests suffer. `found`: names the nodes. `mend`: what to do."""

    check: str
    severe: bool
    found: str
    mend: str


def differences(rows: Sequence[NodeRow], facts: Iterable[Fact] = ()) -> list[Difference]:
    """All that differs between nodes, and the nodes that do not answer. `facts`: of features."""
    found = [*silent(rows), *_protocols(rows), *_versions(rows), *_clocks(rows), *_cards(rows)]
    return [*found, *(difference for fact in facts for difference in _fact(rows, fact))]


def silent(rows: Iterable[NodeRow]) -> Iterator[Difference]:
    """Nodes without an answer."""
    for row in rows:
        if row.state != ANSWERS:
            yield Difference(
                "nodes", row.state != NO_COMMANDS, f"{row.node}: {row.why}", f"see dynamo status on {row.node}"
            )


def differing(values: Mapping[str, Hashable]) -> tuple[dict[str, str], str]:
    """The nodes that differ from most others, each with its value, and the value of the others.

    `values`: by node. Where no value has more nodes than each other value, all nodes differ and the others' is empty.
    """
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return {}, ""
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return {node: str(value) for node, value in values.items() if value != usual}, str(usual) if usual else ""


def _said(values: Mapping[str, Hashable]) -> str:
    """`two has 32, the others have 16`; empty where all agree."""
    odd, usual = differing(values)
    text = ", ".join(f"{node} has {value}" for node, value in sorted(odd.items()))
    return f"{text}, the others have {usual}" if usual and odd else text


def _protocols(rows: Sequence[NodeRow]) -> Iterator[Difference]:
    if found := _said({row.node: row.protocol for row in rows if row.protocol}):
        yield Difference("protocol", False, f"nodes speak several protocols: {found}", "upgrade the older nodes")


def _versions(rows: Sequence[NodeRow]) -> Iterator[Difference]:
    if found := _said({row.node: row.version for row in rows if row.version}):
        yield Difference("releases", False, f"nodes run several releases: {found}", "upgrade the older nodes")


def _clocks(rows: Sequence[NodeRow]) -> Iterator[Difference]:
    """Clocks that differ from the middle of all clocks by more than the measurement can be wrong."""
    known = {row.node: row for row in rows if row.clock_ms is not None}
    middle = median([row.clock_ms or 0.0 for row in known.values()]) if known else 0.0
    for node, row in known.items():
        away = (row.clock_ms or 0.0) - middle
        if abs(away) > MAX_CLOCK_MS + (row.round_trip_ms or 0.0) / 2:
            text = f"the clock of {node} differs from most clocks by {away:+,.0f} ms"
            yield Difference("clocks", False, text, f"set the clock of {node} by NTP")


def _fact(rows: Sequence[NodeRow], fact: Fact) -> Iterator[Difference]:
    known = {
        row.node: row.facts.agree[fact.name] for row in rows if row.facts is not None and fact.name in row.facts.agree
    }
    if found := _said(known):
        yield Difference(fact.name, fact.severe, f"{fact.what} between nodes: {found}", fact.mend)


def _cards(rows: Sequence[NodeRow]) -> Iterator[Difference]:
    models = defaultdict[str, dict[str, list[tuple[str, ...]]]](lambda: defaultdict(list))
    for row in rows:
        for card in row.facts.cards if row.facts is not None else ():
            models[card.model][row.node].append(tuple(str(getattr(card, name)) for name in CARD_FIELDS))
    for model, nodes in sorted(models.items()):
        for number, (what, mend) in enumerate(CARD_FIELDS.values()):
            values = {node: " and ".join(sorted({card[number] for card in cards})) for node, cards in nodes.items()}
            if found := _said(values):
                yield Difference("agreement", True, f"model {model}: {what} between nodes: {found}", mend)
