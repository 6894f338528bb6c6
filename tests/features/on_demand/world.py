"""Models on demand and the clients, loads and clocks around them, without processes."""

import random
from itertools import combinations, count

from dynamod.features.on_demand.core import OnDemand
from dynamod.features.on_demand.settings import Budget, ModelSettings, together
from dynamod.features.on_demand.state import Action, Admit, Drain, Refuse, Start


def model(**keys: object) -> ModelSettings:
    return ModelSettings(component="Worker", **keys)  # type: ignore[arg-type]


class World:
    """Workers and clients that do what the decisions say; checks the laws at each action."""

    def __init__(self, models: dict[str, ModelSettings], budget: Budget) -> None:
        self.core = OnDemand(models, budget, random.Random(1))
        self.now = 0.0
        self.loading: set[str] = set()
        self.draining: set[str] = set()
        self.loaded: set[str] = set()
        self.running: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.broken: set[str] = set()
        self.refused: list[Refuse] = []
        self.done: list[Action] = []
        self._numbers = count(1)

    def act(self, actions: list[Action] | None) -> None:
        for action in actions or ():
            self.done.append(action)
            match action:
                case Start(name):
                    assert name not in self.there, "a second load"
                    self.loading.add(name)
                case Drain(name):
                    assert name in self.loaded | self.loading
                    assert name in self.broken or name not in self.running.values(), "drained under a request"
                    self.loaded.discard(name)
                    self.loading.discard(name)
                    self.draining.add(name)
                case Admit(request):
                    name = self.waiting.pop(request)
                    assert name in self.loaded, "sent to a model without a worker"
                    self.running[request] = name
                    most = self.core.models[name].settings.concurrency
                    assert most is None or list(self.running.values()).count(name) <= most
                case Refuse(request):
                    assert self.waiting.pop(request)
                    self.refused.append(action)
        self.check()

    @property
    def there(self) -> set[str]:
        return self.loading | self.loaded | self.draining

    def check(self) -> None:
        there, budget = [self.core.models[name].settings for name in self.there], self.core.budget
        assert budget.models is None or len(there) <= budget.models
        assert budget.bytes is None or sum(one.bytes for one in there) <= budget.bytes
        assert all(together(pair) for pair in combinations(there, 2))

    def come(self, name: str, keep: float | None = None) -> str:
        request = f"r{next(self._numbers)}"
        self.waiting[request] = name
        self.act(self.core.came(self.now, name, request, keep))
        return request

    def end(self, request: str) -> None:
        self.running.pop(request, None)
        self.waiting.pop(request, None)
        self.act(self.core.ended(self.now, request))

    def ready(self, name: str) -> None:
        self.loading.discard(name)
        self.loaded.add(name)
        self.broken.discard(name)
        self.act(self.core.ready(self.now, name))

    def fail(self, name: str) -> None:
        self.broken.add(name)
        self.act(self.core.failed(self.now, name, "no such file"))

    def gone(self, name: str) -> None:
        self.draining.discard(name)
        self.broken.discard(name)
        self.act(self.core.unloaded(self.now, name))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.core.tick(self.now))

    def settle(self, fail: bool = False) -> None:
        """All loads, drains and running requests come to their end."""
        for name in sorted(self.draining):
            self.gone(name)
        for name in sorted(self.loading):
            if name in self.loading:  # else it was ended for another
                (self.fail if fail else self.ready)(name)
        for request in sorted(self.running):
            self.end(request)
        self.pass_time(1.0)
