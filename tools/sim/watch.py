"""What must hold at any moment: clocks, heartbeats, the amounts in the routers, and no work for nobody."""

from collections.abc import Callable, Iterator, Mapping

from dynamod.features.prefill.handoff import LEASE
from dynamod.ingress.processor import CLOCK
from dynamod.router.placement import Placement
from dynamod.router.router import Router

from .clients import Client
from .cluster import Cluster
from .events import Log
from .places import Place
from .shape import BLOCK, CLOCKS, HEARTBEAT
from .wire import Process

SLACK = 1.0
"""Seconds by which a clock may be late: it is looked at twice a second."""

PATIENCE = (CLOCKS.first or 0.0) * 2 + CLOCK * 2 + SLACK
"""Seconds without a delta after which some clock must have acted: a suspect waits for its place as long as for a token.
"""

AMOUNTS = 0.0537
"""Seconds between looks at the routers' amounts: no multiple of what the cluster does at regular times."""

SOON = 0.1
"""Seconds in which a worker stops to work for a client that has left, on a healthy way."""

AT_LAST = HEARTBEAT * 2 + SLACK
"""Seconds in which it does so on any way, as long as it runs."""

Amounts = tuple[int, int, int]
"""Blocks, prompt tokens to compute, requests: as `router.active.Load`."""


class Watch:
    """Looks at a cluster. `calm()`: no fault of a way goes on."""

    def __init__(self, log: Log, cluster: Cluster, clients: Mapping[str, Client], calm: Callable[[], bool]) -> None:
        self._log, self._cluster, self._clients, self._calm = log, cluster, clients, calm
        self._late: set[str] = set()
        self._instances: dict[int, None] = {}  # all that were ever sent to

    # Once a second.

    def look(self, now: float) -> None:
        """Nothing waits past its clock, and daemons know who responds."""
        for client in self._clients.values():
            # A suspect may wait for a worker that takes nothing else, and then for such a prefill worker.
            patience = PATIENCE + (CLOCKS.first or 0.0) * client.needs_prefill
            if not client.end and now - client.active > patience and client.id not in self._late:
                self._late.add(client.id)
                self._log.violate("clocks", f"{client.id} has got nothing for {now - client.active:.1f} s")
        for place in (*self._cluster.running(ingress=False), *self._cluster.running(ingress=True)):
            self._heartbeats(place, now)
        self._cluster.transfers.look()

    def _heartbeats(self, place: Place, now: float) -> None:
        process, node = place.process, self._cluster.nodes[place.node]
        if process is None or place.link is None or node.frozen or not place.link.connection.lease:
            return
        if not place.link.connection.channel.open:
            return  # nobody listens any more: the process is about to end
        since, why = now - max(process.since, node.daemon.since, place.link.greeted), place.link.connection.why
        if process.frozen and since > HEARTBEAT + SLACK and not why:
            self._log.violate("heartbeats", f"{process.name} has stopped, and its daemon does not notice")
        elif not process.frozen and since > SLACK and why:
            self._log.violate("heartbeats", f"{process.name} runs, and its daemon says that it is {why}")

    # The amounts.

    def sent(self, instance: int) -> None:
        """A request goes to this instance."""
        self._instances[instance] = None

    def amounts(self) -> dict[tuple[str, int], str]:
        """What is wrong with an amount now, by ingress and instance. It may be on its way to be right."""
        return dict(self._amounts())

    def _amounts(self) -> Iterator[tuple[tuple[str, int], str]]:
        for place in self._cluster.running(ingress=True):
            router = place.processor.router() if place.processor is not None else None
            if router is None:
                continue
            for instance in self._instances:
                found = router.state.active.of(instance)
                wanted = self._wanted(router, instance)
                if min(found) < 0 or (wanted is not None and tuple(found) != wanted):
                    yield (place.name, instance), f"{place.name} has {found} at {instance:x}, not {wanted}"

    def _wanted(self, router: Router, instance: int) -> Amounts | None:
        """What the requests there add up to; None where some of them are known by events only."""
        blocks: set[int] = set()
        prefill = requests = 0
        for placement in router.state.active.at(instance):
            if not isinstance(placement, Placement):
                return None
            decision = placement.decision
            client = self._clients[decision.request]
            requests += 1
            blocks.update(client.blocks if router.settings.scores or self._cluster.config.kv_peer_fetch else ())
            begun = client.on == instance and (client.handed or client.tokens > client.base)
            if not begun or client.waits_for_prompt:
                prefill += max(0, decision.tokens - decision.present * BLOCK)
        return len(blocks) + requests, prefill, requests

    def judge(self, before: Mapping[tuple[str, int], str]) -> None:
        """Amounts that were wrong before, and are so still, are wrong."""
        now = self.amounts()
        for key, what in before.items():
            if now.get(key) == what:
                self._log.violate("amounts", what)

    # Work for nobody.

    def over(self, client: Client) -> None:
        """A client's request is over: no worker goes on with it."""
        harmed = self._cluster.wire.harmed

        def soon() -> None:
            if self._calm() and self._cluster.wire.harmed == harmed:
                self._leftover(client, SOON)

        late = max(0.0, self._cluster.wire.drained() - self._cluster.system.now())  # of what is on its way
        if self._calm():
            self._cluster.system_later(SOON + late, soon)
        self._cluster.system_later(AT_LAST + late, lambda: self._leftover(client, AT_LAST))
        leases = LEASE + AT_LAST  # of a prompt, whose prefill worker sends nothing that would show a lost cancel
        self._cluster.system_later(leases + late, lambda: self._leftover(client, leases))

    def _leftover(self, client: Client, seconds: float) -> None:
        now, again = self._cluster.system.now(), False
        for place in self._cluster.running(ingress=False):
            if place.prefill and seconds == AT_LAST:
                continue
            process, worker = place.process, place.worker
            if process is None or worker is None or client.id not in worker.requests():
                continue
            left = place.prefill or process.name != client.at  # the cancel was sent before the end, maybe not calmly
            if left and seconds == SOON and self._may_hide(client, process, place.prefill):
                continue
            others = [self._cluster.nodes[place.node].daemon, client.process, process]
            if any(one is not None and (one.frozen or now - one.since < seconds) for one in others):
                again = True  # it has not had the time yet
            else:
                self._log.violate("work for nobody", f"{process.name} works on {client.id}, which {client.end}")
        if again:
            self._cluster.system_later(seconds, lambda: self._leftover(client, seconds))

    def _may_hide(self, client: Client, process: Process, prefill: bool) -> bool:
        """Whether the cancel may be lost, which shows later: of a prompt, or at a worker that the request has left."""
        wire = self._cluster.wire
        if prefill and client.needs_prefill:
            return bool(wire.harmed)
        return client.process is not None and wire.harmed_between(client.process, process)
