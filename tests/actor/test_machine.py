"""A hypothesis state machine: random supervision trees, random crashes, kills, stops and drains.

After every step: each child's state is one of the known ones, every live actor answers. At the end: every incarnation
died exactly once, none twice, and no task is left.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamod.actor import (
    Actor,
    ActorUnreachable,
    Backoff,
    MailboxFull,
    Policy,
    Reason,
    Ref,
    Spec,
    Supervisor,
    System,
    Terminated,
    handle,
)
from dynamod.actor.testing import VirtualLoop

BACKOFF = Backoff(initial=0.5, maximum=4, jitter=0.5)


@dataclass(frozen=True)
class Ping:
    pass


@dataclass(frozen=True)
class Crash:
    pass


@dataclass(frozen=True)
class Sleep:
    seconds: float


class Leaf(Actor):
    mailbox_capacity = 4

    def __init__(self, book: "Book", fails_to_start: bool) -> None:
        self.book, self.fails_to_start = book, fails_to_start

    async def started(self) -> None:
        self.book.born[self.context.ref] += 1
        self.context.system.watch(self.context.ref, self.book.died)
        self.context.task(asyncio.sleep(1e9))
        await asyncio.sleep(0.1)
        if self.fails_to_start and self.book.coin.random() < 0.5:
            raise OSError("does not start")

    async def stopping(self, reason: Reason) -> None:
        self.book.stopped[self.context.ref] += 1

    @handle
    async def ping(self, message: Ping) -> str:
        return "pong"

    @handle
    async def crash(self, message: Crash) -> None:
        raise RuntimeError("told to")

    @handle
    async def sleep(self, message: Sleep) -> None:
        await asyncio.sleep(message.seconds)


class Book:
    """Who was born, who stopped, who was reported dead."""

    def __init__(self, system: System) -> None:
        self.coin = system.random
        self.born: Counter[Ref] = Counter()
        self.stopped: Counter[Ref] = Counter()
        self.dead: Counter[Ref] = Counter()

    def died(self, notice: Terminated) -> None:
        self.dead[notice.ref] += 1


class Trees(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.system = System(seed=1, policy=Policy(intensity=10**9))
        self.loop.run_until_complete(self.system.__aenter__())
        self.book = Book(self.system)
        self.houses: list[str] = []
        self.leaves: list[str] = []

    def supervisor(self, path: str) -> Supervisor | None:
        cell = self.system.cell(self.system.ref(path))
        return cell.actor if cell is not None and isinstance(cell.actor, Supervisor) else None

    def is_ready(self, path: str) -> bool:
        supervisor = self.supervisor(path)
        return supervisor is not None and supervisor.context.cell.state == "Ready"

    def leaf_spec(self, name: str, restart: str, flaky: bool) -> Spec:
        self.leaves.append(name)
        return Spec(name, lambda: Leaf(self.book, flaky), restart=restart, backoff=BACKOFF, shutdown=1)  # type: ignore[arg-type]

    @rule(
        intensity=st.integers(0, 4),
        escalate=st.booleans(),
        restarts=st.lists(st.sampled_from(["permanent", "temporary"]), max_size=4),
        nested=st.booleans(),
    )
    def build(self, intensity: int, escalate: bool, restarts: list[str], nested: bool) -> None:
        name = f"h{len(self.houses)}"
        policy = Policy(intensity, 20, escalate)
        names = [(f"{name}l{i}", restart) for i, restart in enumerate(restarts)]

        def factory() -> Supervisor:
            return Supervisor([self.leaf_spec(n, r, False) for n, r in names], policy)

        parents = [path for path in self.houses if self.is_ready(path)] if nested else []
        parent = self.system.random.choice(parents) if parents else ""
        under = self.supervisor(parent) if parent else self.system.root
        assert under is not None
        under.start_child(Spec(name, factory, backoff=BACKOFF))
        self.houses.append(f"{parent}/{name}")

    @rule(flaky=st.booleans(), restart=st.sampled_from(["permanent", "temporary"]))
    def add_leaf(self, flaky: bool, restart: str) -> None:
        for path in self.houses:
            supervisor = self.supervisor(path)
            if supervisor is not None and supervisor.context.cell.state == "Ready":
                supervisor.start_child(self.leaf_spec(f"x{len(self.leaves)}", restart, flaky))
                return

    def pick(self, number: int) -> Ref | None:
        cells = [cell for cell in self.system.cells() if isinstance(cell.actor, Leaf)]
        return cells[number % len(cells)].ref if cells else None

    @rule(number=st.integers(0, 100), message=st.sampled_from([Crash(), Crash(), Sleep(3), Sleep(100), Ping()]))
    def send(self, number: int, message: object) -> None:
        ref = self.pick(number)
        if ref is not None:
            self.loop.run_until_complete(self.try_send(ref, message))

    async def try_send(self, ref: Ref, message: object) -> None:
        try:
            ref.send_nowait(message)
        except MailboxFull:
            pass

    @rule(number=st.integers(0, 100))
    def kill(self, number: int) -> None:
        ref = self.pick(number)
        cell = self.system.cell(ref) if ref is not None else None
        if cell is not None and cell.task is not None:
            cell.task.cancel()

    @rule(number=st.integers(0, 100), drain=st.booleans(), again=st.booleans())
    def stop_or_restart(self, number: int, drain: bool, again: bool) -> None:
        ref = self.pick(number)
        if ref is None:
            return
        parent, name = ref.path.rsplit("/", 1)
        supervisor = self.supervisor(parent)
        if supervisor is None or name not in {child.name for child in supervisor.children()}:
            return
        end = supervisor.restart_child if again else supervisor.stop_child
        try:
            self.loop.run_until_complete(end(name, drain=drain, timeout=2))
        except ActorUnreachable:
            assert again  # its supervisor gave up meanwhile

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.5, 3.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @invariant()
    def states_are_known_and_nobody_died_twice(self) -> None:
        for cell in self.system.cells():
            assert cell.state in {"Starting", "Ready", "Draining", "Stopped"}
            if isinstance(cell.actor, Supervisor):
                for child in cell.actor.children():
                    assert child.state in {"Starting", "Ready", "Draining", "Stopped", "Restarting", "Fatal"}
        assert all(count == 1 for count in self.book.dead.values())
        assert all(count == 1 for count in self.book.stopped.values())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.system.__aexit__(None, None, None))
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        self.loop.close()
        assert not left
        assert self.system.failure is None
        assert self.system.statistics().actors == 0
        assert self.book.born == self.book.dead == self.book.stopped


TestTrees = Trees.TestCase
TestTrees.settings = settings(stateful_step_count=25)
