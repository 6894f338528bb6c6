"""Which models are loaded: the decision, pure. Events in, actions out; no clock, no tasks, no I/O.

Laws: what is loaded, loading or draining fits the budget and the groups; a model has at most one load; none is drained
under a running request; the longest wait is served first, so that each model has its turn; a failed load is tried again
only for a new request, and later each time.
"""

from collections.abc import Mapping
from random import Random

from dynamod.actor import Backoff

from . import room
from .settings import Budget, ModelSettings
from .state import Action, Admit, Drain, Model, Refuse, Start

RETRY = Backoff(initial=5.0, factor=2.0, maximum=300.0)
"""Between loads that fail."""


class OnDemand:
    """Events are methods that return what is to be done; `now` never goes back. An action is done once.

    After `Start` comes `ready` or `failed`, after `Drain` comes `unloaded`, after `Admit` comes `ended`.
    `decides`: else another process decides what is loaded, and requests for models that are ready are admitted only.
    """

    def __init__(self, models: Mapping[str, ModelSettings], budget: Budget, random: Random, now: float = 0.0) -> None:
        self.models = {
            name: Model(name, one, since=now, keep=one.seconds, memory=one.bytes) for name, one in models.items()
        }
        self.budget = budget
        self.decides = True
        self._random = random
        self._of: dict[str, Model] = {}  # by request

    # Events.

    def preload(self, now: float) -> list[Action]:
        """The beginning: load what is configured so."""
        for model in self.models.values():
            if model.settings.preload:
                model.asked = now
        return self.tick(now)

    def came(self, now: float, name: str, request: str, keep_alive: float | None = None) -> list[Action]:
        """A request came. `keep_alive`: seconds that the model stays after it, below 0 forever; None: its `ttl`."""
        model = self.models[name]
        if model.state in ("unloaded", "draining") and now < model.retry_at:
            return [Refuse(request, model.last_error, model.retry_at - now)]
        self._of[request] = model
        model.waiting[request] = now
        model.keep = model.settings.seconds if keep_alive is None else None if keep_alive < 0 else keep_alive
        return self.tick(now)

    def ended(self, now: float, request: str) -> list[Action]:
        """A request is over, or its client has left while it waited. Told twice, it means nothing."""
        model = self._of.pop(request, None)
        if model is None:
            return []
        model.waiting.pop(request, None)
        model.turn.discard(request)
        if request in model.running:
            model.running.discard(request)
            model.idle_since = now
        return self.tick(now)

    def ready(self, now: float, name: str) -> list[Action]:
        """The worker of the model serves, also where another process has started it."""
        model = self.models[name]
        if model.state in ("ready", "draining"):
            return []
        if model.state == "loading":
            model.took = now - model.since
        model.enter("ready", now)
        model.asked, model.idle_since, model.failures, model.last_error = None, now, 0, ""
        model.turn.update(model.waiting)
        return self.tick(now)

    def found(self, now: float, name: str) -> list[Action]:
        """The worker of the model starts already: by an operator, or by the process before this one."""
        model = self.models[name]
        if model.state == "unloaded":
            model.enter("loading", now)
        return self.tick(now)

    def leaves(self, now: float, name: str) -> list[Action]:
        """The worker of the model ends already: by an operator, or by the process before this one."""
        model = self.models[name]
        return [self._drain(model, now), *self.tick(now)] if model.state == "unloaded" else []

    def measured(self, name: str, memory: int) -> None:
        """Bytes that it takes, or probably will; no event. What is configured stays.

        Never above the budget: what is alone may be loaded, whatever it takes.
        """
        model, limit = self.models[name], self.budget.bytes
        if not model.settings.bytes:
            model.memory = memory if limit is None else min(memory, limit)

    def lost(self, now: float, name: str) -> list[Action]:
        """Its worker serves no more, and starts again."""
        model = self.models[name]
        if model.state == "ready":
            model.enter("loading", now)
        return self.tick(now)

    def failed(self, now: float, name: str, why: str) -> list[Action]:
        """The worker of the model is given up: the requests that wait are refused with the reason."""
        model = self.models[name]
        if model.state not in ("loading", "ready"):
            return []
        model.enter("draining", now)
        model.failures += 1
        model.asked, model.last_error = None, why
        model.retry_at = now + RETRY.delay(model.failures, self._random)
        refused = [Refuse(request, why, model.retry_at - now) for request in model.waiting]
        for request in model.waiting:
            del self._of[request]
        model.waiting.clear()
        return [*refused, Drain(name), *self.tick(now)]

    def unloaded(self, now: float, name: str) -> list[Action]:
        """Its worker has ended, and none takes its place."""
        self.models[name].enter("unloaded", now)
        return self.tick(now)

    def load(self, now: float, name: str) -> list[Action]:
        """An operator wants the model loaded now, also a model that has failed before."""
        model = self.models[name]
        model.leaving = False
        if model.state in ("unloaded", "draining"):
            model.asked, model.retry_at = now, now
        return self.tick(now)

    def unload(self, now: float, name: str) -> list[Action] | None:
        """An operator wants the model unloaded, after its running requests. None: requests wait for its load."""
        model = self.models[name]
        if model.state in ("unloaded", "loading") and (model.waiting or model.running):
            return None
        model.asked = None
        if model.state == "loading":
            return [self._drain(model, now), *self.tick(now)]
        model.leaving = model.state == "ready"
        return self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if not self.decides:
            return [one for model in self.models.values() for one in self._admit(model)]
        for model in self.models.values():
            limit = model.settings.load_seconds
            if model.state == "loading" and not model.running and now - model.since >= limit:
                return self.failed(now, model.name, f"it was not ready within {limit:g} s")
            if model.yields_to and self.models[model.yields_to].content:
                model.yields_to = ""
        actions: list[Action] = [one for model in self.models.values() for one in self._admit(model)]
        actions += self._loads(now)
        for model in self.models.values():
            if model.state == "ready" and not model.running and (model.leaving or model.expired(now)):
                actions.append(self._drain(model, now))
        return actions

    # For the requests that wait.

    def estimate(self, now: float, name: str) -> float:
        """Seconds until the model may be ready, by its last load.

        Of one that was never loaded by the longest load of the others, and at least as long as it takes so far.
        """
        model, patience = self.models[name], 0.0
        so_far = now - model.since if model.state == "loading" else 0.0
        if model.took is None:
            longest = max((one.took for one in self.models.values() if one.took is not None), default=0.0)
            return max(1.0, so_far, longest - so_far)
        if model.state != "loading" and (wanted := model.wanted_since) is not None and self._blocked(model):
            patience = max(0.0, wanted + self.budget.patience - now)
        return max(1.0, patience + model.took - so_far)

    # The decision.

    def _blocked(self, model: Model) -> bool:
        there = [one for one in self.models.values() if one.state != "unloaded" and one is not model]
        return not room.fits([*there, model], self.budget)

    def _admit(self, model: Model) -> list[Action]:
        most, admitted = model.settings.concurrency, list[Action]()
        while model.waiting and (most is None or len(model.running) < most):
            request = next(iter(model.waiting))
            if not model.takes(request):
                break
            del model.waiting[request]
            model.running.add(request)
            admitted.append(Admit(request))
        return admitted

    def _loads(self, now: float) -> list[Action]:
        """Load models that requests wait for, longest wait first; others leave for them. No model overtakes another."""
        actions: list[Action] = []
        waiting = [model for model in self.models.values() if model.state == "unloaded" and now >= model.retry_at]
        since = {model.name: asked for model in waiting if (asked := model.wanted_since) is not None}
        plan = [model for model in self.models.values() if model.state in ("loading", "ready")]
        for name in sorted(since, key=since.__getitem__):
            model = self.models[name]
            victims = room.victims(model, plan, self.budget)
            if victims is None:
                break
            if any(one.busy for one in victims):
                if now - since[name] < self.budget.patience:
                    break
                for one in victims:
                    if not one.yields_to:  # no request overtakes an earlier one
                        one.turn.update(request for request, came in one.waiting.items() if came <= since[name])
                    one.yields_to = name
            plan = [one for one in plan if one not in victims] + [model]
            actions += [self._drain(one, now) for one in victims if not one.busy]
            if not victims and room.fits([*self._there(), model], self.budget):
                model.enter("loading", now)
                actions.append(Start(name))
        return actions

    def _there(self) -> list[Model]:
        return [model for model in self.models.values() if model.state != "unloaded"]

    def _drain(self, model: Model, now: float) -> Action:
        model.enter("draining", now)
        return Drain(model.name)
