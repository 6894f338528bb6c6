"""The invariants find what is broken on purpose: each mutant is one mistake in the real code."""

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.actor import Supervisor, unseen
from dynamod.daemon import heartbeat
from dynamod.daemon.link import LinkServer
from dynamod.discovery import view
from dynamod.discovery.keys import exited_key
from dynamod.discovery.view import View
from dynamod.engine.batching.handoff import Held
from dynamod.engine.mocker.own_transfer import MockerTransfer
from dynamod.engine.own_transfer import Ready
from dynamod.features.isolation import stage as isolation_stage
from dynamod.features.isolation import trials
from dynamod.features.isolation.stage import IsolationStage
from dynamod.features.prefill.handoff import HandoffEndpoint
from dynamod.features.prefill.own_transfer import OwnTransferEndpoint
from dynamod.features.prefill.remote import RemotePrompt
from dynamod.features.prefill.transfer.sessions import Ending, Session, Sessions
from dynamod.ingress.in_flight import RequestsInFlight
from dynamod.ingress.subscriptions import EventSubscriptions
from dynamod.message import tokens
from dynamod.message.discovery import Instance
from dynamod.message.worker import Generate, Handoff
from dynamod.migration import answer as answer_module
from dynamod.migration.request import InFlightRequest
from dynamod.router.active import ActiveLoad
from dynamod.router.placement import DispatcherClient, Placement
from dynamod.router.router import Router
from dynamod.router.state import WorkerState
from dynamod.runtime.liveness import Verdict
from dynamod.transport.base import Reply
from dynamod.transport.inbox import Inbox
from dynamod.transport.nats import wire as nats_wire
from tools.sim.run import simulate
from tools.sim.shape import Shape, faults_of

Patch = Callable[[pytest.MonkeyPatch], None]


def forgets_the_last_token(patch: pytest.MonkeyPatch) -> None:
    """A move hands on all but the last token: the next instance says it again."""

    def short(ids: Any) -> bytes:
        return tokens.pack(ids[:-1] if isinstance(ids, array) else ids)  # an array: what came so far

    patch.setattr(answer_module, "tokens", SimpleNamespace(pack=short, unpack=tokens.unpack))


def takes_doubled_frames(patch: pytest.MonkeyPatch) -> None:
    """What comes twice is not dropped, neither by its link nor by its offset."""
    take = nats_wire.Receiver.take

    def again(self: nats_wire.Receiver, message: bytes) -> bytes | None:
        kind, _, number = nats_wire.header(message)
        doubled = kind == nats_wire.DATA and number <= self.sequence and len(message) > nats_wire.HEADER.size
        return message[nats_wire.HEADER.size :] if doubled else take(self, message)

    patch.setattr(nats_wire.Receiver, "take", again)

    def seen(expected: int, offset: int, count: int) -> int:
        return unseen(expected, max(offset, expected), count) if offset <= expected else unseen(expected, offset, count)

    patch.setattr(answer_module, "unseen", seen)


def keeps_load(patch: pytest.MonkeyPatch) -> None:
    """A placement that ends is not taken off the account."""
    patch.setattr(Placement, "release", lambda self: None)


def keeps_blocks_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A worker that goes is not forgotten."""
    patch.setattr(WorkerState, "forget", lambda self, worker: None)


def tries_again_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """An instance that has failed is picked once more."""
    decide = Router.decide
    patch.setattr(
        Router, "decide", lambda self, prompt, instances, _tried, *more: decide(self, prompt, instances, (), *more)
    )


def never_looks_at_clocks(patch: pytest.MonkeyPatch) -> None:
    """A request waits for ever, where its link does not see either that something is lost."""
    overlooks_lost_numbers(patch)
    patch.setattr(InFlightRequest, "expire", lambda self, limits: None)
    patch.setattr(RequestsInFlight, "instances_changed", lambda self: None)


def waits_for_the_silent(patch: pytest.MonkeyPatch) -> None:
    """Quarantine is not looked at."""
    patch.setattr(RequestsInFlight, "instances_changed", lambda self: None)


def never_restarts(patch: pytest.MonkeyPatch) -> None:
    """A supervisor forgets to start what has died."""

    async def later(self: Any, name: str, dead: Any, delay: float) -> None: ...

    patch.setattr(Supervisor, "_restart_later", later)


def gives_up_at_once(patch: pytest.MonkeyPatch) -> None:
    """A request fails although another instance is ready."""
    patch.setattr(DispatcherClient, "available", lambda self, card, prompt, exclude: False)


def swallows_the_end(patch: pytest.MonkeyPatch) -> None:
    """Who waits on a connection is not report that it is gone."""
    patch.setattr(Inbox, "lost", lambda self, why: None)
    patch.setattr(InFlightRequest, "expire", lambda self, limits: None)


def trusts_the_first_view(patch: pytest.MonkeyPatch) -> None:
    """Instances that go stay in the view."""
    changed = View._instance_changed

    def deaf(self: Any, key: str, value: bytes | None) -> None:
        if value is not None:
            changed(self, key, value)

    patch.setattr(View, "_instance_changed", deaf)
    patch.setattr(View, "_card_changed", _only_added(View._card_changed))


def _only_added(real: Any) -> Any:
    return lambda self, key, value: real(self, key, value) if value is not None else None


def keeps_what_lost_feeds_told(patch: pytest.MonkeyPatch) -> None:
    """A worker that tells anew what is under way there is believed, and the old words too."""
    patch.setattr(ActiveLoad, "drop_published", lambda self, worker: None)


def waits_for_silent_feeds(patch: pytest.MonkeyPatch) -> None:
    """A feed whose Subscribe or last words are lost stays as it is, where its link does not see it either."""
    overlooks_lost_numbers(patch)
    patch.setattr(EventSubscriptions, "look", lambda self: None)


def charges_prompts_twice(patch: pytest.MonkeyPatch) -> None:
    """A prompt weighs twice at its worker."""
    start = ActiveLoad.start

    def twice(self: Any, key: Any, worker: int, blocks: Any, prefill: int, now: float, **more: Any) -> None:
        start(self, key, worker, blocks, prefill, now, **more)
        self._workers[worker].prefill += prefill

    patch.setattr(ActiveLoad, "start", twice)


def charges_blocks_twice(patch: pytest.MonkeyPatch) -> None:
    """A prompt's blocks are in use twice, and given back once."""
    start = ActiveLoad.start

    def twice(self: Any, key: Any, worker: int, blocks: Any, prefill: int, now: float, **more: Any) -> None:
        start(self, key, worker, blocks, prefill, now, **more)
        for block in blocks:
            self._workers[worker].blocks[block] += 1

    patch.setattr(ActiveLoad, "start", twice)


def charges_requests_twice(patch: pytest.MonkeyPatch) -> None:
    """A request is load under two names, and one of them is never given back."""
    started = Router.started

    def twice(self: Any, key: Any, decision: Any, prompt: Any) -> None:
        started(self, key, decision, prompt)
        self.state.active.start((prompt.request, "again"), decision.chosen, prompt.blocks, 0, self.state.now())

    patch.setattr(Router, "started", twice)


def never_takes_prefill_off(patch: pytest.MonkeyPatch) -> None:
    """A prompt weighs until its request has ended."""
    patch.setattr(ActiveLoad, "prefill_completed", lambda self, key: None)


def keeps_load_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """What a worker has published weighs on when that worker has gone."""
    patch.setattr(ActiveLoad, "drop", lambda self, worker: None)


def never_tells_who_left(patch: pytest.MonkeyPatch) -> None:
    """A worker is not told that a client has left."""
    patch.setattr(Inbox, "cancel", lambda self, stream: self._sinks.pop(stream, None))


def forgets_who_has_gone(patch: pytest.MonkeyPatch) -> None:
    """A daemon says that a process has gone, and does not revoke its lease."""

    def only_said(self: LinkServer, lease: int, cause: str = "") -> None:
        self.registry.put(exited_key(lease), cause.encode(), self._lease)

    patch.setattr(LinkServer, "exited", only_said)


def compares_heartbeats_the_other_way(patch: pytest.MonkeyPatch) -> None:
    """Who has just given a sign of life counts as unresponsive."""
    awake = Verdict("stuck", "silent")
    patch.setattr(heartbeat, "judge", lambda clocks, signs: awake if signs.quiet < clocks.heartbeat else Verdict())


def waits_for_heartbeats_too_long(patch: pytest.MonkeyPatch) -> None:
    """Somebody took seconds for what were other units."""
    judge = heartbeat.judge
    patch.setattr(heartbeat, "judge", lambda clocks, signs: judge(clocks, signs._replace(quiet=signs.quiet / 20)))


def trusts_the_registry(patch: pytest.MonkeyPatch) -> None:
    """Whoever writes to the registry writes what we understand."""

    def trusting(key: str, value: bytes | None, kind: Any) -> Any:
        return None if value is None else msgspec.json.decode(value, type=kind)

    patch.setattr(view, "decoded", trusting)


def overlooks_lost_numbers(patch: pytest.MonkeyPatch) -> None:
    """A gap in the numbers of a link between nodes is not seen."""
    take = nats_wire.Receiver.take

    def trusting(self: nats_wire.Receiver, message: bytes) -> bytes | None:
        kind, _, number = nats_wire.header(message)
        self.sequence = max(self.sequence, number - (kind == nats_wire.DATA))
        return take(self, message)

    patch.setattr(nats_wire.Receiver, "take", trusting)


def suspects_nobody(patch: pytest.MonkeyPatch) -> None:
    """Requests at workers that crash are sent on like others."""

    def nothing(self: IsolationStage, *_about: object, **_more: object) -> None:
        pass

    patch.setattr(IsolationStage, "died", nothing)


def convicts_everybody(patch: pytest.MonkeyPatch) -> None:
    """A request that was at a worker that crashed is the cause, alone there or not."""
    died = IsolationStage.died

    def at_once(self: IsolationStage, instance: Instance, cause: str, at: Placement | None, **kind: bool) -> None:
        died(self, instance, cause, at, **{**kind, "alone": True})

    patch.setattr(IsolationStage, "died", at_once)


def never_convicts(patch: pytest.MonkeyPatch) -> None:
    """A request that crashed a worker alone is tried again."""
    died = IsolationStage.died

    def lenient(self: IsolationStage, instance: Instance, cause: str, at: Placement | None, **_kind: bool) -> None:
        died(self, instance, cause, at, alone=False, begun=False)

    patch.setattr(IsolationStage, "died", lenient)


def tries_beside_streams_that_stay(patch: pytest.MonkeyPatch) -> None:
    """A trial goes to a worker whose streams cannot move, convicts no request there, and the next one begins."""
    patch.setattr(trials, "staying", lambda _active, _instance: 0)
    patch.setattr(isolation_stage, "MAX_DEATHS", 99)


def takes_doubled_pieces(patch: pytest.MonkeyPatch) -> None:
    """The offsets of pieces of an answer are not compared, although the numbers of messages were right."""
    patch.setattr(answer_module, "unseen", lambda _expected, _offset, _count: 0)


def keeps_sessions(patch: pytest.MonkeyPatch) -> None:
    """A session whose blocks were read is not released."""
    forget = Sessions.forget

    def kept(self: Sessions, session: Session, ending: Ending) -> None:
        if ending != "read":
            forget(self, session, ending)

    patch.setattr(Sessions, "forget", kept)


def keeps_prompts_of_who_left(patch: pytest.MonkeyPatch) -> None:
    """A prefill worker is not told that nobody wants a prompt any more."""

    patch.setattr(RemotePrompt, "_cancel", lambda _self: None)


def keeps_the_load_of_prompts(patch: pytest.MonkeyPatch) -> None:
    """A prompt that a prefill worker has computed counts as load there for ever."""

    def ended(self: RemotePrompt) -> None:
        self._over = True

    patch.setattr(RemotePrompt, "_end", ended)


def never_expires(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the leases of prompts."""

    async def asleep(self: Sessions) -> None: ...

    patch.setattr(Sessions, "_expire", asleep)


def waits_for_ever_for_readers(patch: pytest.MonkeyPatch) -> None:
    """An engine that moves blocks by itself keeps them until they are read."""
    prefill = MockerTransfer.prefill

    async def patient(self: MockerTransfer, request: Generate, ready: Ready) -> None:
        patch.setattr(self, "lease", None)
        await prefill(self, request, ready)

    patch.setattr(MockerTransfer, "prefill", patient)


def keeps_blocks_of_the_expired(patch: pytest.MonkeyPatch) -> None:
    """The bytes of a session that has expired count for ever."""
    forget = Sessions.forget

    def kept(self: Sessions, session: Session, ending: Ending) -> None:
        self._held += session.held if ending == "expired" else 0
        forget(self, session, ending)

    patch.setattr(Sessions, "forget", kept)


def reads_any_layout(patch: pytest.MonkeyPatch) -> None:
    """A reader does not look at the layout of what it is about to read."""
    read = HandoffEndpoint._read

    async def trusting(self: HandoffEndpoint, held: Held, request: Generate, handoff: Handoff, reply: Reply) -> None:
        layout = self._engine.layout

        def once() -> str:
            patch.setattr(self._engine, "layout", layout)
            return handoff.layout

        patch.setattr(self._engine, "layout", once)
        await read(self, held, request, handoff, reply)

    patch.setattr(HandoffEndpoint, "_read", trusting)


def gives_to_any_layout(patch: pytest.MonkeyPatch) -> None:
    """A source does not look at the layout of its reader."""
    attach = Sessions.attach

    def attached(self: Sessions, name: str, _layout: str, reader: Any, first: int = 0) -> Any:
        return attach(self, name, self._layout, reader, first)

    patch.setattr(Sessions, "attach", attached)


def engines_read_any_layout(patch: pytest.MonkeyPatch) -> None:
    """A worker lets its engine read from an engine of another layout."""
    patch.setattr(OwnTransferEndpoint, "adopt", lambda self, request, reply: self._engine.submit(request, reply))


MUTANTS: list[tuple[Patch, int, str, set[str]]] = [
    (forgets_the_last_token, 2, "crash,hang", {"prior output", "the text is the reference"}),
    (takes_doubled_frames, 0, "double", {"the text is the reference", "finished is complete"}),
    (keeps_load, 0, "none", {"load is released"}),
    (keeps_blocks_of_the_dead, 0, "crash,drain", {"the index knows the living"}),
    (tries_again_where_it_was, 4, "crash,hang", {"no instance twice"}),
    (never_looks_at_clocks, 2, "drop", {"clocks"}),
    (waits_for_the_silent, 2, "hang", {"the dead are left"}),
    (never_restarts, 0, "crash", {"what died is started again"}),
    (gives_up_at_once, 2, "crash", {"failures have a reason"}),
    (swallows_the_end, 2, "crash", {"clocks", "one end"}),
    (trusts_the_first_view, 0, "crash,drain", {"view"}),
    (keeps_what_lost_feeds_told, 2, "drop,mail-cut", {"load is released"}),
    (waits_for_silent_feeds, 2, "drop,mail-cut", {"load is released"}),
    (charges_prompts_twice, 0, "none", {"amounts"}),
    (charges_blocks_twice, 0, "none", {"amounts"}),
    (charges_requests_twice, 0, "none", {"load is released"}),
    (never_takes_prefill_off, 0, "none", {"amounts"}),
    (keeps_load_of_the_dead, 4, "crash,drain", {"load is released"}),
    (never_tells_who_left, 0, "leave", {"work for nobody"}),
    (forgets_who_has_gone, 0, "crash", {"leases"}),
    (compares_heartbeats_the_other_way, 0, "none", {"heartbeats"}),
    (waits_for_heartbeats_too_long, 2, "hang", {"heartbeats"}),
    (trusts_the_registry, 0, "registry-values", {"no internal errors"}),
    (overlooks_lost_numbers, 4, "drop,leave", {"work for nobody", "clocks"}),
    (suspects_nobody, 1, "poison", {"poison"}),
    (convicts_everybody, 1, "poison", {"failures have a reason"}),
    (never_convicts, 1, "poison", {"poison"}),
    (tries_beside_streams_that_stay, 8, "poison,staying", {"poison"}),
    (takes_doubled_pieces, 3, "repeat", {"the text is the reference", "finished is complete"}),
    (keeps_sessions, 0, "transfer", {"sessions end", "sessions expire"}),
    (keeps_prompts_of_who_left, 5, "transfer,leave,hang", {"work for nobody", "sessions end"}),
    (keeps_the_load_of_prompts, 0, "transfer", {"load is released"}),
    (never_expires, 1, "transfer", {"sessions expire"}),
    (waits_for_ever_for_readers, 4, "transfer", {"sessions expire"}),
    (keeps_blocks_of_the_expired, 1, "transfer", {"sessions end"}),
    (reads_any_layout, 9, "transfer", {"layouts agree"}),
    (gives_to_any_layout, 37, "transfer", {"layouts agree"}),
    (engines_read_any_layout, 6, "transfer", {"layouts agree"}),
]
"""The mistake, a seed that finds it, the faults that happen, and the checks of which one fails."""

NAMES = [mutant.__name__ for mutant, *_ in MUTANTS]

SEARCHED = range(40)
"""Seeds among which one finds each mistake, whatever new faults draw."""


def found(mutant: Patch, seed: int, shape: Shape) -> set[str]:
    """The checks that fail when the mistake is made."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        return {check for check, _ in simulate(seed, shape).problems}


@pytest.mark.parametrize(("mutant", "seed", "faults", "checks"), MUTANTS, ids=NAMES)
def test_a_mistake_is_found(mutant: Patch, seed: int, faults: str, checks: set[str]) -> None:
    shape = Shape(requests=30, faults=faults_of(faults))
    seen = found(mutant, seed, shape)
    assert seen & checks, f"seed {seed} sees {seen}; `pytest -m slow` of this file names another seed"
    assert not simulate(seed, shape).problems


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "seed", "faults", "checks"), MUTANTS, ids=NAMES)
def test_a_seed_is_found(mutant: Patch, seed: int, faults: str, checks: set[str]) -> None:
    """The search for the seeds above."""
    shape = Shape(requests=30, faults=faults_of(faults))
    first = next((one for one in SEARCHED if found(mutant, one, shape) & checks), None)
    assert first is not None, f"none of {SEARCHED} sees it"
    print(f"{mutant.__name__}: {first}, stored is {seed}")
