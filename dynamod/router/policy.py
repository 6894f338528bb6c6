"""Policies: which of the candidates gets the request. Pure: what is known goes in, the choice and its rule come out."""

import math
import random as random_module
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from dynamod.message.errors import UserError

from .decision import Candidate

RouterMode = Literal["round-robin", "random", "kv", "least-loaded", "power-of-two", "direct"]
MODES: tuple[str, ...] = get_args(RouterMode)

CROWD = 8
CROWD_RATIO = 2.0
"""A worker that answers more than CROWD requests, and more than CROWD_RATIO times the mean, gets no request for the
sake of its cache alone: one system prompt that everybody shares must not bring everybody to one worker."""

_EQUAL = 1e-9


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
    if len(candidates) == 1:
        return Choice(candidates[0].instance, "the only candidate")
    if (
        home is not None
        and mode not in ("kv", "direct")
        and home in [one.instance for one in without_crowds(candidates)]
    ):
        return Choice(home, "the session's last worker")
    match mode:
        case "round-robin" | "direct":
            ordered = [one.instance for one in candidates]
            return Choice(ordered[turn % len(ordered)], f"turn {turn} of {len(ordered)} in the order of their ids")
        case "random":
            return Choice(random.choice(candidates).instance, "chance", tuple(one.instance for one in candidates))
        case "least-loaded":
            return _least(candidates, [one.requests for one in candidates], random, "fewest requests")
        case "power-of-two":
            pair = random.sample(list(candidates), 2)
            return _least(pair, [one.requests for one in pair], random, "fewer requests of two drawn")
        case "kv":
            return _kv(candidates, random, temperature, home)


def _least(candidates: Sequence[Candidate], values: Sequence[float], random: random_module.Random, rule: str) -> Choice:
    lowest = min(values)
    best = [one.instance for one, value in zip(candidates, values, strict=True) if value - lowest <= _EQUAL]
    if len(best) == 1:
        return Choice(best[0], rule)
    return Choice(random.choice(best), f"{rule}, by chance among {len(best)} equal ones", tuple(best))


def _kv(candidates: Sequence[Candidate], random: random_module.Random, temperature: float, home: int | None) -> Choice:
    calm = without_crowds(candidates)
    rule = "lowest total" if len(calm) == len(candidates) else "lowest total, crowded workers left out"
    totals = [one.total for one in calm]
    if temperature <= 0:
        choice = _least(calm, totals, random, rule)
        return Choice(home, f"{rule}, the session's last worker among equal ones") if home in choice.tied else choice
    weights = softmax(totals, temperature)
    index = random.choices(range(len(calm)), weights)[0]
    text = f"chance {weights[index]:.3f} by softmax at temperature {temperature:g}"
    return Choice(calm[index].instance, text, tuple(one.instance for one in calm))


def without_crowds(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Leave out workers that answer far more requests than the others (see CROWD)."""
    requests = sum(one.requests for one in candidates)
    bound = max(CROWD, CROWD_RATIO * requests / len(candidates))
    calm = [one for one in candidates if one.requests <= bound]
    return calm or candidates


def softmax(costs: Sequence[float], temperature: float) -> list[float]:
    """Probabilities of costs, the lowest most likely: scaled by their range, as in the original's scheduler.rs."""
    lowest = min(costs)
    spread = max(costs) - lowest
    if spread <= _EQUAL:
        return [1 / len(costs)] * len(costs)
    raw = [math.exp((lowest - cost) / spread / temperature) for cost in costs]  # the best has 1, so no sum is 0
    whole = sum(raw)
    return [value / whole for value in raw]
