"""What may be loaded at once: the budget and the groups. Pure."""

from collections.abc import Collection

from .settings import Budget, together
from .state import Model


def fits(models: Collection[Model], budget: Budget) -> bool:
    """Whether budget and groups allow that all these models are loaded at once."""
    most, memory = budget.models, budget.bytes
    return (
        (most is None or len(models) <= most)
        and (memory is None or sum(model.memory for model in models) <= memory)
        and together([model.settings for model in models])
    )


def victims(model: Model, plan: Collection[Model], budget: Budget) -> list[Model] | None:
    """Models that have to leave so that the model fits: idle ones first, then the least recently used."""
    stay, leave = list(plan), list[Model]()
    clash = [one for one in stay if not together([one.settings, model.settings])]
    order = sorted(stay, key=lambda one: (one not in clash, not one.yields_to, one.busy, one.idle_since))
    for one in order:
        if one not in clash and fits([*stay, model], budget):
            break
        if one.state != "ready" and one.wanted_since is not None:
            continue  # requests wait for it, or it has its place next
        stay.remove(one)
        leave.append(one)
    return leave if fits([*stay, model], budget) else None
