"""Policies that need no knowledge of caches: round robin and random. Pure: state in, choice and state out."""

import random as random_module
from collections.abc import Collection, Sequence
from typing import Literal, get_args

from dynamod.message.errors import UserError
from dynamod.message.registry import Instance

RouterMode = Literal["round-robin", "random"]
MODES: tuple[str, ...] = get_args(RouterMode)


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
    instances: Sequence[Instance],
    turn: int,
    random: random_module.Random,
    excluded: Collection[int] = (),
) -> Instance | None:
    """The instance for a request; None when there is none but draining and excluded ones.

    `turn` counts the requests for the model so far; round robin takes the ready instances in the order of their ids,
    whatever order they came in. `excluded`: ids that this request has tried already.
    """
    ready = [i for i in instances if i.state == "ready" and i.instance_id not in excluded]
    if not ready:
        return None
    if mode == "random":
        return random.choice(ready)
    ready.sort(key=lambda instance: instance.instance_id)
    return ready[turn % len(ready)]
