"""What answers the commands of the cluster in the daemon."""

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from dynamod.daemon.served import ServedModels
from dynamod.discovery.keys import CARDS, STATIC_CARDS
from dynamod.discovery.records import decoded
from dynamod.extension.command import CommandHandler, NoArguments
from dynamod.extension.installed import extensions
from dynamod.message.discovery import ModelCard

from .commands import (
    EVERYWHERE,
    NODE,
    NODES,
    CardFacts,
    EverywhereArguments,
    NodeAnswer,
    NodeFacts,
    NodeRow,
    NodeView,
    read,
)
from .nodes import FEATURE

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext

    from .daemon import ClusterPart


async def node(context: "CommandContext", _arguments: NoArguments) -> NodeFacts:
    """What this node says of itself."""
    here = context.node
    served, rows = ServedModels(here), here.graphs.rows()
    states = {row.process: row.state for row in rows}
    busy = [row for row in rows if row.running or row.waiting]
    ages = [row.progress_age for row in busy if row.progress_age is not None]
    engines = {row.process: row for row in rows}.values()
    return NodeFacts(
        version=here.cluster.record.version,
        protocol=here.cluster.record.protocol,
        pid=os.getpid(),
        uptime=time.monotonic() - here.life.born,
        processes=len(states),
        ready=sum(state == "Ready" for state in states.values()),
        models=served.models(),
        running=sum(row.running for row in engines),
        waiting=sum(row.waiting for row in engines),
        progress_age=max(ages, default=None),
        cards=cards(here.registry.own_items()),
        agree={fact.name: fact.of(here) for facts in extensions(FEATURE) for fact in facts},
    )


def cards(items: Iterable[tuple[str, bytes, int]]) -> list[CardFacts]:
    """What the workers of a node have published, among keys and values of the registry: each kind once."""
    found = {
        CardFacts(card.name, card.mdc_sum, card.kv_cache_block_size, card.context_length)
        for key, value, _ in items
        if key.startswith((CARDS, STATIC_CARDS)) and (card := decoded(key, value, ModelCard)) is not None
    }
    return sorted(found, key=msgspec.structs.astuple)


async def everywhere(context: "CommandContext", arguments: EverywhereArguments) -> list[NodeAnswer]:
    """The answers of all nodes to a command."""
    return await _part(context).everywhere(arguments.command, arguments.arguments)


async def nodes(context: "CommandContext", _arguments: NoArguments) -> list[NodeRow]:
    """All nodes, with what they say of themselves."""
    found = await _part(context).everywhere(NODE.name)
    return [row_of(one) for one in found]


def row_of(answer: NodeAnswer) -> NodeRow:
    """A node with its facts, of its answer to `node`."""
    answer, facts = read(answer, NodeFacts)
    seen = {name: getattr(answer, name) for name in NodeView.__struct_fields__}
    return NodeRow(**seen, facts=facts)


def _part(context: "CommandContext") -> "ClusterPart":
    part: ClusterPart = context.node.parts.of_features[FEATURE]  # type: ignore[assignment]
    return part


HANDLERS = (CommandHandler(NODE, node), CommandHandler(NODES, nodes), CommandHandler(EVERYWHERE, everywhere))
