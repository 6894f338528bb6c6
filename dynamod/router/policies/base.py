"""What a routing policy is asked, and what it answers."""

import random as random_module
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol

OVERLOAD = 8
OVERLOAD_RATIO = 2.0
"""A worker that answers more than OVERLOAD requests, and more than OVERLOAD_RATIO times the mean, gets no request for
the sake of its cache alone: a common system prompt must not bring all requests to one worker."""

EQUAL = 1e-9
"""Costs that differ by less are equal."""


class Choice(NamedTuple):
    """The chosen instance, the rule that decided, and the instances among which chance decided."""

    instance: int
    rule: str
    tied: tuple[int, ...] = ()


class Question(NamedTuple):
    """Which of these workers gets a request? `ids` ascend, `requests` has the same places; there is at least one.

    `turn`: requests for the model before this one. `temperature`: 0 takes the lowest cost, above it chance decides.
    `sticky`: the worker of the session's last request. `costs()`: what the request costs at each worker, in blocks;
    they are counted at the first call, so a policy that asks for none pays for none.
    """

    ids: Sequence[int]
    requests: Sequence[int]
    random: random_module.Random
    costs: Callable[[], Sequence[float]]
    turn: int = 0
    temperature: float = 0.0
    sticky: int | None = None


class Policy(Protocol):
    """Chooses among workers. One object serves the router of one model, and may keep state.

    `needs_blocks`: prompts come with the hashes of their blocks, and workers' cache events are subscribed to.
    `needs_load`: so are their load events. `soft_sessions`: the worker of the session's last request is taken without
    asking the policy, as long as it is not overloaded. Inherit from this for the defaults.
    """

    needs_blocks: ClassVar[bool] = False
    needs_load: ClassVar[bool] = False
    soft_sessions: ClassVar[bool] = True

    def required(self, session: str, live: Sequence[int]) -> int | None:
        """The only worker of `live` (ascending ids, busy ones too) that may have the session's request; None: any.

        While that worker is busy the request waits or is refused, as if its client had asked for the worker by id.
        """
        return None

    def choose(self, question: Question) -> Choice:
        """The worker for a request; there are at least two."""
        ...


def choose(policy: Policy, question: Question) -> Choice:
    """The worker for a request, by the rules that all policies share and then by the policy itself."""
    ids, sticky = question.ids, question.sticky
    if len(ids) == 1:
        return Choice(ids[0], "the only candidate")
    if sticky is not None and policy.soft_sessions:
        place = bisect_left(ids, sticky)
        here = place < len(ids) and ids[place] == sticky
        if here and question.requests[place] <= overload_bound(question.requests):
            return Choice(sticky, "the session's last worker")
    return policy.choose(question)


def lowest(values: Sequence[float]) -> list[int]:
    """Places of the lowest value, and of values that differ from it by rounding alone."""
    least = min(values)
    near = least + 2 * EQUAL + abs(least) * 1e-15  # a little too high for any rounding: the next line decides
    return [place for place, value in enumerate(values) if value <= near and value - least <= EQUAL]


def draw(ids: Sequence[int], places: Sequence[int], random: random_module.Random, rule: str) -> Choice:
    """The worker at one of these equally good places; chance decides if there are several."""
    if len(places) == 1:
        return Choice(ids[places[0]], rule)
    tied = [ids[place] for place in places]
    return Choice(random.choice(tied), f"{rule}, by chance among {len(tied)} equal ones", tuple(tied))


def overload_bound(requests: Sequence[int]) -> float:
    """Of workers that answer so many requests: above how many one is overloaded (see OVERLOAD). Never all are."""
    return max(OVERLOAD, OVERLOAD_RATIO * sum(requests) / len(requests))
