"""The wire between processes: sessions of real inboxes and outboxes whose payloads are delayed, lost, doubled, damaged.

Inside a node it behaves like a unix socket: ordered, nothing is lost, the end of a process is seen at once. Between
nodes it behaves like a broker: what is sent while the way is cut is gone, and a peer that has been out of reach for
HEARTBEAT seconds is given up. What was lost shows by the numbers that `transport.nats.wire` gives to messages.
"""

import asyncio
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.discovery.keys import lease_of
from dynamod.message.discovery import Instance
from dynamod.message.worker import Request, Subscribe
from dynamod.transport.base import Outbound, Receive, Sink
from dynamod.transport.inbox import Inbox
from dynamod.transport.nats import wire as nats_wire
from dynamod.transport.outbox import Outbox

from .events import Log
from .shape import HEARTBEAT

ALIVE = 0.5
"""Seconds between two signs of life on a link between nodes."""

BUDGET = 1 << 24
END = nats_wire.end("")[:2]
"""How a message begins that closes a link."""

NEAR = 0.00005
FAR = 0.0005
"""Seconds that a payload takes inside a node and between nodes; up to twice as long by chance."""

CONNECT = 0.0005
TICK = 1e-6
"""Seconds between two payloads of one direction at least: what is due at the same moment has no order in a loop."""


class Process:
    """A simulated operating system process: what enters it waits while it is frozen, and is lost once it is dead."""

    def __init__(self, name: str, node: int, pid: int = 0) -> None:
        self.name, self.node, self.pid = name, node, pid
        self.alive, self.frozen = True, False
        self.since = 0.0  # when it was last stopped, or went on
        self.code, self.killed = 0, ""  # how it ends: the exit code, and why its daemon has killed it
        self._held: list[Callable[[], object]] = []

    def enter(self, work: Callable[[], object]) -> None:
        """Something comes from outside."""
        if self.frozen:
            self._held.append(work)
        elif self.alive:
            work()

    def thaw(self) -> None:
        """Go on, with what came meanwhile, in order."""
        self.frozen = False
        held, self._held = self._held, []
        for place, work in enumerate(held):
            if self.frozen:  # frozen again by what it did
                self._held = held[place:] + self._held
                return
            self.enter(work)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault of the wire: each payload between `a` and `b` (None: any node) meets it with `chance`."""

    kind: str
    chance: float
    a: int | None = None
    b: int | None = None
    delay: float = 0.0

    def touches(self, source: int, target: int) -> bool:
        """Whether payloads between these two nodes meet it."""
        ends = {source, target}
        return (self.a is None or self.a in ends) and (self.b is None or self.b in ends) and source != target


class Session:
    """A connection of an ingress process (`transport`) to a worker process (`server`).

    Between nodes it is a link over a broker: the real numbers of `transport.nats.wire` are around each payload, so that
    what is lost or comes twice is seen, by the next message or the next sign of life.
    """

    def __init__(self, wire: "Wire", transport: "SimulatedTransport", server: "WorkerServer") -> None:
        self.wire, self.transport, self.server = wire, transport, server
        self.inbox = Inbox(lambda payload: self._send(payload, False))
        self.outbox: Outbox | None = None
        self.open_here = self.open_there = True
        self.suspect = 0  # counts the times at which the way was cut
        self.last = {False: 0.0, True: 0.0}  # when the last payload arrives, toward the worker and toward the ingress
        self.far = transport.process.node != server.process.node
        self._senders = {False: nats_wire.Sender(), True: nats_wire.Sender()}
        self._receivers = {toward: nats_wire.Receiver(nats_wire.Budget(BUDGET)) for toward in (False, True)}
        self.label = f"{transport.process.name}>{server.process.name}"
        if self.far:
            wire.after(ALIVE, self._tick)

    @property
    def over(self) -> bool:
        """Both ends know that it has ended."""
        return not self.open_here and not self.open_there

    def _send(self, payload: bytes, to_ingress: bool) -> None:
        if self.open_there if to_ingress else self.open_here:
            self.wire.carry(self, payload, to_ingress)
            random, chance = self.wire.repeats
            if to_ingress and chance and random.random() < chance:
                self.wire.repeated += 1
                self.wire.carry(self, payload, to_ingress)  # as a message of its own: its number is right

    def numbered(self, payload: bytes, to_ingress: bool) -> bytes:
        """The message of a payload that leaves now."""
        (message,) = self._senders[to_ingress].cut(payload, BUDGET)
        return message

    def _tick(self) -> None:
        """A sign of life of each end that has streams, as long as it could say anything new."""
        if self.over:
            return
        if self.wire.harmed:
            for to_ingress, busy in ((False, len(self.inbox)), (True, self.outbox is not None and self.outbox.streams)):
                if busy and (self.open_there if to_ingress else self.open_here):
                    self.wire.carry(self, self._senders[to_ingress].alive(), to_ingress, raw=True)
        self.wire.after(ALIVE, self._tick)

    def arrived(self, message: bytes, to_ingress: bool) -> None:
        """A message has come through."""
        if not (self.open_here if to_ingress else self.open_there):
            if self.far and not message.startswith(END):
                self._tell("the other end does not know this link any more", not to_ingress)
            return
        try:
            payload = self._receivers[to_ingress].take(message) if self.far else message
            if payload is not None and to_ingress:
                self.inbox.frame(payload)
            elif payload is not None:
                self.outbox = self.outbox or Outbox(lambda payload: self._send(payload, True))
                self.outbox.take(payload, self.server.receive)
        except nats_wire.PeerEndedError as error:
            self._fail(str(error), to_ingress)
        except (nats_wire.WireError, msgspec.MsgspecError) as error:
            self._fail(str(error), to_ingress)
            self._tell(str(error), not to_ingress)

    def _fail(self, why: str, here: bool) -> None:
        if here:
            self.end_here(why, link=True)
        else:
            self.end_there()

    def _tell(self, why: str, to_ingress: bool) -> None:
        self.wire.carry(self, nats_wire.end(why), to_ingress, raw=True)

    def end(self, why: str, *, here: float = 0.0, there: float = 0.0, link: bool = False) -> None:
        """End it: each side learns of it after so many seconds (at once when it is frozen no more)."""
        self.wire.after(here, lambda: self.transport.process.enter(lambda: self.end_here(why, link=link)))
        self.wire.after(there, lambda: self.server.process.enter(self.end_there))

    def end_here(self, why: str, *, link: bool = False) -> None:
        """The ingress learns that it is over. `link`: the process at the other end may live."""
        if self.open_here:
            self.open_here = False
            self.transport.forget(self)
            self.wire.log("session", f"{self.label} ended: {why}")
            if link:
                self.wire.failed(self)
            self.inbox.lost(why, link=link)

    def end_there(self) -> None:
        """The worker learns that it is over."""
        if self.open_there:
            self.open_there = False
            if self.outbox is not None:
                self.outbox.close()


class WorkerServer:
    """Where a worker process takes requests."""

    def __init__(self, process: Process, receive: Receive) -> None:
        self.process, self.receive = process, receive


class _Stream:
    __slots__ = ("_number", "_session")

    def __init__(self, session: Session, number: int) -> None:
        self._session, self._number = session, number

    def cancel(self) -> None:
        """Leave the stream."""
        self._session.inbox.cancel(self._number)

    def confirm(self) -> None:
        """Confirm its acceptance."""
        self._session.inbox.confirm(self._number)


class SimulatedTransport:
    """`transport.base.Transport` of an ingress process. `sent(instance, request)` is called for each request."""

    def __init__(self, wire: "Wire", process: Process, sent: Callable[[Instance, Any], None]) -> None:
        self.process = process
        self._wire, self._sent = wire, sent
        self.sessions: dict[str, Session] = {}
        self._places: dict[int, str] = {}  # processes that were sent to, by lease

    def open(self, instance: Instance, request: Request, sink: Sink) -> Outbound:
        """Open a stream over the session with the instance's process."""
        place = instance.transport.get("simulated", "")
        self._places[instance.instance_id] = place
        session = self.sessions.get(place)
        if session is None:
            session = self.sessions[place] = self._wire.connect(self, place)
        if not isinstance(request, Subscribe):
            self._sent(instance, request)
        return _Stream(session, session.inbox.open(instance.path, request, sink))

    def exited(self, key: str, value: bytes | None) -> None:
        """A process is gone, as its daemon says: between nodes it does not show otherwise for a while."""
        lease = lease_of(key)
        session = self.sessions.get(self._places.pop(lease, "")) if value is not None and lease is not None else None
        if session is not None and session.server.process.node != self.process.node:
            session.end_here("the worker is gone")

    def forget(self, session: Session) -> None:
        """The session is over: the next request opens another."""
        place = session.server.process.name
        if self.sessions.get(place) is session:
            del self.sessions[place]

    async def close(self) -> None:
        """End all sessions."""
        for session in list(self.sessions.values()):
            session.end_here("the ingress ended")


class Wire:
    """All sessions. `reachable(a, b)`: whether messages between two nodes pass now; `separated(a, b)`: whether one of
    them gets nothing from the other, which is also so when one has stopped.
    """

    def __init__(
        self,
        log: Log,
        random: random_module.Random,
        reachable: Callable[[int, int], bool],
        separated: Callable[[int, int], bool],
    ) -> None:
        self.log, self._random, self.reachable, self._separated = log, random, reachable, separated
        self._loop = asyncio.get_running_loop()
        self.after = self._loop.call_later
        self.servers: dict[str, WorkerServer] = {}
        self.sessions: list[Session] = []
        self.troubles: list[Trouble] = []
        self.slow: dict[str, float] = {}  # process -> seconds that it takes for a frame
        self.failed: Callable[[Session], None] = lambda _session: None  # a link between living processes
        self.repeats = random_module.Random(), 0.0  # of payloads toward an ingress: the chance of being sent twice
        self.repeated = 0
        self.payloads = self.bytes = self.harmed = self._marks = 0
        self._harmed_ways: set[tuple[str, str]] = set()  # names of the ingress process and of the worker process

    def connect(self, transport: SimulatedTransport, place: str) -> Session:
        """A new session; what is wrong with it shows later."""
        server = self.servers.get(place)
        if server is None:  # nobody listens there any more: it ends as a socket or a broker would end it
            session = Session(self, transport, WorkerServer(Process(place, transport.process.node), lambda *_: None))
            session.open_there = False
            session.end("nobody listens there", here=CONNECT)
            return session
        session = Session(self, transport, server)
        self.sessions.append(session)
        if self._separated(transport.process.node, server.process.node):
            self._suspect(session)
        return session

    def carry(self, session: Session, payload: bytes, to_ingress: bool, *, raw: bool = False) -> None:
        """Bring a payload across, behind those that were sent before it. `raw`: it is a message without a number."""
        source, target = session.server.process, session.transport.process
        if not to_ingress:
            source, target = target, source
        if source.frozen:  # what a stopped process would do, it does when it goes on
            source.enter(lambda: self.carry(session, payload, to_ingress, raw=raw))
            return
        if not source.alive:
            return
        if session.far and not raw:
            payload = session.numbered(payload, to_ingress)
        self.payloads += 1
        self.bytes += len(payload)
        near = source.node == target.node
        if not near and not self.reachable(source.node, target.node):
            self._harm(session)
            return
        slow = self.slow.get(target.name, 0.0) if to_ingress else 0.0
        due = self._loop.time() + (NEAR if near else FAR) * (1 + self._random.random())
        due = max(due, session.last[to_ingress] + TICK) + slow
        times = 1
        if self.troubles and not near:
            for trouble in self.troubles:
                if not trouble.touches(source.node, target.node) or self._random.random() >= trouble.chance:
                    continue
                self._harm(session)
                self.log("wire", f"{trouble.kind} {source.name}>{target.name} {len(payload)} bytes")
                match trouble.kind:
                    case "drop":
                        return
                    case "double":
                        times = 2
                    case "corrupt":
                        payload = b"\xc1" + payload[1:]  # no version of the protocol
                    case "reorder":  # it alone is late: those behind it overtake it
                        late = due + trouble.delay * self._random.random()
                        self._loop.call_at(late, self._arrive, session, payload, to_ingress)
                        return
                    case _:
                        due += trouble.delay
        session.last[to_ingress] = due
        for _ in range(times):
            self._loop.call_at(due, self._arrive, session, payload, to_ingress)

    def _harm(self, session: Session) -> None:
        self.harmed += 1
        self._harmed_ways.add((session.transport.process.name, session.server.process.name))

    def harmed_between(self, ingress: Process, worker: Process) -> bool:
        """Whether a payload between the two, in either direction, was harmed at any time."""
        return (ingress.name, worker.name) in self._harmed_ways

    def _arrive(self, session: Session, payload: bytes, to_ingress: bool) -> None:
        transport, server = session.transport.process, session.server.process
        if transport.node != server.node and not self.reachable(server.node, transport.node):
            self._harm(session)
            return
        (transport if to_ingress else server).enter(lambda: session.arrived(payload, to_ingress))

    def drained(self) -> float:
        """When all that is on the way now has arrived: a process that was slow has much before it."""
        return max(
            (last for session in self.sessions if not session.over for last in session.last.values()), default=0.0
        )

    # What happens to processes and ways.

    def process_died(self, process: Process, node_died: bool) -> None:
        """Its sessions end: at once where the kernel sees it, by silence where a whole node is gone."""
        self.servers.pop(process.name, None)
        for session in self._of(process):
            if session.transport.process is process:
                session.open_here = False
            else:
                session.open_there = False
            near = session.transport.process.node == session.server.process.node
            silent = node_died or session.server.process is process  # the ingress learns it from the registry before
            delay = NEAR if near else HEARTBEAT if silent else CONNECT
            session.end("the peer is gone", here=delay, there=delay)
        self.sessions = [session for session in self.sessions if not session.over]

    def changed(self) -> None:
        """Some way has been cut or is open again: sessions whose way is cut are given up if it stays so."""
        self.sessions = [session for session in self.sessions if not session.over]
        for session in self.sessions:
            if self._separated(session.transport.process.node, session.server.process.node):
                self._suspect(session)
            else:
                session.suspect = 0

    def _suspect(self, session: Session) -> None:
        if session.suspect == 0:
            self._marks += 1
            session.suspect = self._marks
            self.after(HEARTBEAT, self._give_up, session, session.suspect)

    def _give_up(self, session: Session, mark: int) -> None:
        if session.suspect == mark and not session.over:
            self.harmed += 1
            session.end("the peer is unresponsive", link=True)

    def _of(self, process: Process) -> list[Session]:
        return [one for one in self.sessions if process in (one.transport.process, one.server.process)]
