"""Policies: which of the candidates gets the request. Pure: what is known goes in, the choice and its rule come out."""

import math
import random as random_module
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

from dynamod.message.errors import UserError

from .decision import Candidate

RouterMode = Literal["round-robin", "random", "kv", "least-loaded", "power-of-two", "direct"]
MODES: tuple[str, ...] = get_args(RouterMode)

CROWD = 8
CROWD_RATIO = 2.0
"""A worker that answers more than CROWD requests, and more than CROWD_RATIO times the mean, gets no request for the
sake of its cache alone: one system prompt that everybody shares must not bring everybody to one worker."""

_EQUAL = 1e-9

T = TypeVar("T")


class Choice(NamedTuple):
    """The chosen instance, what decided, and among whom chance decided."""

    instance: int
    rule: str
    tied: tuple[int, ...] = ()


def mode_of(text: str) -> RouterMode:
    """The mode of that name (`round_robin` too). Raises UserError that lists the known ones."""
    name = text.replace("_", "-").lower()
    for mode in get_args(RouterMode):
        if name == mode:
            found: RouterMode = mode
            return found
    raise UserError(f"unknown router mode '{text}'", f"known modes: {', '.join(MODES)}")


def choose(
    mode: RouterMode,
    candidates: Sequence[Candidate],
    turn: int,
    random: random_module.Random,
    temperature: float = 0.0,
    home: int | None = None,
) -> Choice:
    """The candidate for a request; there must be one. They come in the order of their ids.

    `turn` counts the requests for the model so far (round robin). `temperature` 0 takes the lowest total (kv).
    `home`: who had the session's last request; it decides between equal costs, and in modes that know no caches as long
    as it is not crowded.
    """
    ids = [one.instance for one in candidates]
    requests = [one.requests for one in candidates]
    return choose_among(mode, ids, requests, [one.total for one in candidates], turn, random, temperature, home)


def choose_among(
    mode: RouterMode,
    ids: Sequence[int],
    requests: Sequence[int],
    totals: Sequence[float],
    turn: int,
    random: random_module.Random,
    temperature: float = 0.0,
    home: int | None = None,
) -> Choice:
    """`choose`, of columns: ids in ascending order, requests, and totals (read by kv alone)."""
    if len(ids) == 1:
        return Choice(ids[0], "the only candidate")
    if home is not None and mode not in ("kv", "direct"):
        place = bisect_left(ids, home)
        if place < len(ids) and ids[place] == home and requests[place] <= overloaded(requests):
            return Choice(home, "the session's last worker")
    match mode:
        case "round-robin" | "direct":
            return Choice(ids[turn % len(ids)], f"turn {turn} of {len(ids)} in the order of their ids")
        case "random":
            return Choice(random.choice(ids), "chance", tuple(ids))
        case "least-loaded":
            return _least(ids, requests, random, "fewest requests")
        case "power-of-two":
            pair = random.sample(range(len(ids)), 2)
            drawn, counts = [ids[place] for place in pair], [requests[place] for place in pair]
            return _least(drawn, counts, random, "fewer requests of two drawn")
        case "kv":
            return _kv(ids, requests, totals, random, temperature, home)


def _least(ids: Sequence[int], values: Sequence[float], random: random_module.Random, rule: str) -> Choice:
    lowest = min(values)
    near = lowest + 2 * _EQUAL + abs(lowest) * 1e-15  # a little too high for any rounding: the next line decides
    best = [ids[place] for place, value in enumerate(values) if value <= near and value - lowest <= _EQUAL]
    if len(best) == 1:
        return Choice(best[0], rule)
    return Choice(random.choice(best), f"{rule}, by chance among {len(best)} equal ones", tuple(best))


def _kv(
    ids: Sequence[int],
    requests: Sequence[int],
    totals: Sequence[float],
    random: random_module.Random,
    temperature: float,
    home: int | None,
) -> Choice:
    rule, bound = "lowest total", overloaded(requests)
    if max(requests) > bound:
        rule = "lowest total, crowded workers left out"
        crowds = [place for place, count in enumerate(requests) if count > bound]
        ids, totals = _without(ids, crowds), _without(totals, crowds)
    if temperature <= 0:
        choice = _least(ids, totals, random, rule)
        return Choice(home, f"{rule}, the session's last worker among equal ones") if home in choice.tied else choice
    weights = softmax(totals, temperature)
    index = random.choices(range(len(ids)), weights)[0]
    text = f"chance {weights[index]:.3f} by softmax at temperature {temperature:g}"
    return Choice(ids[index], text, tuple(ids))


def _without(values: Sequence[T], places: Sequence[int]) -> Sequence[T]:
    """What is left without some ascending places: few, so most is copied in long pieces."""
    left: list[T] = []
    begin = 0
    for place in places:
        left += values[begin:place]
        begin = place + 1
    left += values[begin:]
    return left


def overloaded(requests: Sequence[int]) -> float:
    """Of workers that answer so many requests: above how many one is crowded (see CROWD). Never all are."""
    return max(CROWD, CROWD_RATIO * sum(requests) / len(requests))


def without_crowds(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Leave out workers that answer far more requests than the others (see CROWD)."""
    bound = overloaded([one.requests for one in candidates])
    return [one for one in candidates if one.requests <= bound]


def softmax(costs: Sequence[float], temperature: float) -> list[float]:
    """Probabilities of costs, the lowest most likely: scaled by their range, as in the original's scheduler.rs."""
    lowest = min(costs)
    spread = max(costs) - lowest
    if spread <= _EQUAL:
        return [1 / len(costs)] * len(costs)
    raw = [math.exp((lowest - cost) / spread / temperature) for cost in costs]  # the best has 1, so no sum is 0
    whole = sum(raw)
    return [value / whole for value in raw]
