"""What must hold: while a simulation runs, when a request fails, and when all is over."""

import json
from collections.abc import Iterable, Sequence

from dynamod.discovery.keys import CARDS, EXITED, INSTANCES, QUARANTINED
from dynamod.message.discovery import PREFILL
from dynamod.message.errors import NotFound, Overloaded, PoisonRequest, TimedOut

from .clients import Client
from .cluster import Cluster
from .events import Log
from .model import CONTEXT
from .places import Place
from .process import SimulatedWorker
from .shape import CLOCKS, MIGRATIONS, MODEL, PATHS
from .wire import Process

PROMPT = 0.1
"""Seconds in which requests leave a worker that is known to be gone."""

SECOND = "; it is the second worker that ended with this request"
"""End of the error of a request that was not alone at the second worker that crashed with it."""

STAYS = "; this engine cannot continue an answer that has been sent in part"
"""End of the error of an answer that stays at its worker, which has gone."""

KNOWN: dict[str, str] = {}
"""Checks that are known to fail, and why: counted, but no failure of a run. To be emptied as the causes are mended."""


def serving(place: Place, *, prompts: bool = False) -> list[int]:
    """Instances that an ingress may send to now, read from its registry client and without its view.

    `prompts`: those that compute prompts for others, else those that answer.
    """
    registry = place.registry
    if registry is None:
        return []
    out = registry.known(QUARANTINED).keys() | registry.known(EXITED).keys()
    cards = {key.removeprefix(CARDS) for key, value in registry.known(CARDS).items() if _card(value)}
    found: list[int] = []
    for key, value in registry.known(INSTANCES).items():
        where = key.removeprefix(INSTANCES)
        lease = where.rpartition("/")[2]
        if (
            where in cards
            and (b'"pool"' in value) == prompts
            and not out & {f"{QUARANTINED}{lease}", f"{EXITED}{lease}"}
        ):
            found.append(int(lease, 16))
    return found


def _card(value: bytes) -> bool:
    """Whether this is a card of our workers; others may put what they like."""
    try:
        card = json.loads(value)
        return bool(card["name"] == MODEL and card["context_length"] == CONTEXT)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def illegal(client: Client, cluster: Cluster, now: float) -> str:
    """Why a request should not have failed as it did; empty when it may."""
    error, place = client.error, client.place
    if error is None or place is None:
        return "it has no error"
    text, sends, tries = str(error), len(client.sends), client.tries
    there = serving(place)
    busy = cluster.routing.busy_prefill is not None or cluster.routing.busy_blocks is not None
    if isinstance(error, PoisonRequest):
        innocent = not client.planned.poison and len(client.hit) < 2
        return f"it has done nothing, and only {len(client.hit)} of its workers were hit" if innocent else ""
    if text.endswith(STAYS) and not cluster.exact:
        return "" if client.tokens else "it has no answer yet, so it may be sent again"
    if text.endswith(SECOND):
        return "" if len(client.hit) > 1 else f"only {len(client.hit)} of its workers were hit"
    if text.startswith("the processor is") and cluster.nodes[place.node].ending:
        return ""
    if isinstance(error, TimedOut):
        return "" if now - client.begun > (CLOCKS.total or 0.0) else "its clock has not passed"
    if isinstance(error, NotFound):
        return f"{len(there)} instances serve the model" if there else ""
    if text.endswith(f", after {tries} tries"):
        return "" if tries == MIGRATIONS + 1 else f"it may be sent {MIGRATIONS + 1} times, and was sent {tries} times"
    if client.needs_prefill and text.startswith("no prefill worker could compute the prompt"):
        return ""
    if isinstance(error, Overloaded):
        isolating = place.processor is not None and place.processor.isolating
        computing = serving(place, prompts=True)
        if client.needs_prefill and text.startswith(f"No prefill worker of model {MODEL!r} is ready"):
            return f"{len(computing)} prefill workers are ready" if computing else ""
        busy_there = isolating or client.asked.issuperset(computing)
        if client.needs_prefill and busy_there and text.startswith("no instance took the request within"):
            return ""
        if text.endswith("; no other instance is ready") or text.startswith("No other instance of model"):
            left = [one for one in there if one not in client.sends]
            return f"{len(left)} others are ready" if left else ""
        if text == f"No instance of model {MODEL!r} is ready.":
            return f"{len(there)} are ready" if there else ""
        if text.startswith("the processor is not available"):
            return "" if client.process is None or not client.process.alive else "it is there"
        if busy and (text.endswith("can take the request.") or text.startswith("no instance took the request within")):
            return ""
        if sends and text.endswith(f"within {CLOCKS.first:g} s: all are busy"):
            return ""  # others were tried alone before it, at workers that did not answer either
        untried = [one for one in there if one not in client.sends]
        if text.endswith(": all are busy") and (isolating or client.displaced or not untried):
            return ""  # the last worker tries another alone, or has just ended that way
        if busy and sends:  # an instance was lost, and all others are busy
            return ""
    return "there is no reason for such an error"


def informed(place: Place) -> bool:
    """Whether an ingress is connected to the registry now, and can act on it."""
    return place.registry is not None and place.registry.connected and _awake(place)


def _awake(place: Place) -> bool:
    return place.process is not None and place.process.alive and not place.process.frozen


def left(log: Log, clients: Sequence[Client], process: Process, why: str, *, told: bool = True) -> None:
    """None of these requests is still at a worker that its ingress knows to be dead or quarantined.

    Those whose ingress has some in its queue may wait there for a worker that is not busy. `told`: their ingress has
    learnt it from the registry, if it is still informed.
    """
    if why == "quarantined" and not (process.frozen and process.alive):
        return  # it goes on
    for client in clients:
        place = client.place
        if client.end or client.at != process.name or place is None or not _awake(place):
            continue
        if told and not informed(place):
            continue
        if place.processor is None or place.processor.waiting or client.bound not in ("", process.name):
            continue
        if client.pauses:
            continue  # it has left, and is sent again in a moment
        if client.needs_prefill and (not client.bound or client.waits_for_prompt):
            continue  # it has left, and waits until its prompt can be computed once more
        if not told and client.waits_for_prompt:
            continue  # it has no stream there yet, which would tell its ingress
        if why == "quarantined" and not client.can_move:
            continue  # it waits: the process may respond again, else it is killed
        log.violate("the dead are left", f"{client.id} is at {process.name} since {client.since:.3f}, which is {why}")


def revoked(log: Log, cluster: Cluster, process: Process, lease: int, session: int) -> None:
    """A process has gone: its daemon has ended its lease, if it is in the same `session` with the registry."""
    node = cluster.nodes[process.node]
    if node.registry.session == session and not node.frozen and lease in cluster.etcd.leases:
        log.violate("leases", f"{process.name} has gone, and its lease {lease:x} is still there")


def settled(log: Log, cluster: Cluster, *, whole: bool) -> None:
    """All requests are over and all faults healed: nothing is left of them. `whole`: no payload can have been lost."""
    live: dict[int, SimulatedWorker] = {}
    answering: set[int] = set()  # without those that only compute prompts
    for place in cluster.running(ingress=False):
        worker = place.worker
        if worker is None or worker.instance is None or place.registry is None:
            continue
        live[place.registry.lease] = worker
        if not place.prefill:
            answering.add(place.registry.lease)
        endpoint = worker.handoffs.endpoint
        left = endpoint.statistics().sessions if endpoint is not None else None
        if left is not None and (left.open or left.held_bytes):
            log.violate("sessions end", f"{place.name}: {left}")
        if worker.open_requests:
            log.violate("workers are idle", f"{place.name} has {worker.open_requests} open requests")
        load = worker.load()
        if load.running or load.waiting or load.active_blocks:
            log.violate("workers are idle", f"{place.name}: {load}")
    for node in cluster.nodes:
        supervisor = cluster.supervisor(node)
        fatal = {one.name for one in supervisor.children() if one.state == "Fatal"} if supervisor is not None else set()
        for place in node.places.values():
            if place.wanted and place.name not in fatal and not _ready(place):
                log.violate("what died is started again", f"{place.name} is not ready")
    stored = {int(key.rpartition("/")[2], 16) for key, _ in cluster.etcd.store.items(INSTANCES)}
    if stored != set(live):
        log.violate("registry", f"the registry has {_hex(stored)}, alive are {_hex(live)}")
    for place in cluster.running(ingress=True):
        processor = place.processor
        if processor is None or place.backend is None:
            continue
        view = processor.view
        for known, there in (
            ({instance.instance_id for instance in view.served(MODEL, pool="").instances}, answering),
            ({one for path in PATHS.values() for one in view.instances(path)}, set(live)),
        ):
            if known != there:
                log.violate("view", f"{place.name} sees {_hex(known)}, alive are {_hex(there)}")
        if len(processor.requests):
            log.violate("requests end", f"{place.name} has {len(processor.requests)} in flight")
        router = processor.router()
        if router is None:
            continue
        if processor.waiting:
            log.violate("the queue is empty", f"{place.name} has {processor.waiting} waiting")
        if len(router.state.active):  # at the living or the dead, of its own or as workers have published
            log.violate("load is released", f"{place.name} counts {len(router.state.active)} requests")
        indexed = dict(router.state.index.dump())
        if not indexed.keys() <= answering:
            log.violate("the index knows the living", f"{place.name} has blocks of {_hex(indexed.keys() - answering)}")
        prompts = processor.dispatch.routers.get((MODEL, PREFILL))
        if prompts is not None and len(prompts.state.active):
            log.violate("load is released", f"{place.name} counts {len(prompts.state.active)} prompts")
        for number, worker in live.items():
            if number not in answering:
                continue
            if whole and router.settings.needs_events:
                names = worker.blocks()
                have = set(indexed[number].blocks) if number in indexed else set()
                if names != have:
                    text = f"{place.name} has {len(have)} blocks of {number:x}, which holds {len(names)}"
                    log.violate("the index is right", text)


def _ready(place: Place) -> bool:
    if not _awake(place):
        return False
    if place.processor is not None:
        return place.backend is not None
    if place.kind == "planner":
        return place.planner is not None and place.planner.nodes is not None
    return place.worker is not None and place.worker.instance is not None


def ended(log: Log, cluster: Cluster) -> None:
    """Everything has been stopped in good order: nothing stands in the registry."""
    keys = [key for key, _ in cluster.etcd.store.items() if not key.startswith((EXITED, QUARANTINED))]
    if keys:
        log.violate("clean end", f"the registry still has {keys[:3]}")
    owners = [client.owner for client in cluster.etcd.leases.values()]
    left = [name for name in owners if not name.endswith(".daemon")]
    if left:
        log.violate("clean end", f"leases are left of {', '.join(left)}")


def _hex(numbers: Iterable[int]) -> str:
    return ", ".join(sorted(f"{number:x}" for number in numbers)) or "none"
