"""Kept routing decisions under another policy: reuse of caches and time to the first token (pure).

Each decision is made again with the workers as they were then. What a different choice would have changed for later
requests is not in the result.
"""

import random
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from dynamod.message.errors import BadRequest
from dynamod.router.decision import Candidate, Decision
from dynamod.router.policies import policy_class
from dynamod.router.policies.base import Question, choose

MODES = ("kv", "least-loaded", "power-of-two", "round-robin", "random")
ENOUGH = 20
"""Requests with a time to the first token from which that time is estimated."""
SEED = 1


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """`decisions`: made again. `changed`: of them those with another worker. `blocks`: of all prompts.

    `reused`: blocks that the chosen workers had. `ttft_ms`: the median, as the same estimate says for both; None: too
    few requests are known.
    """

    mode: str
    decisions: int
    changed: int
    blocks: int
    reused: int
    reused_then: int
    ttft_ms: float | None = None
    ttft_ms_then: float | None = None


def what_if(decisions: Sequence[Decision], mode: str, first_ms: Mapping[str, float]) -> WhatIf:
    """The decisions under a policy. `first_ms`: by request, from its arrival to its first token. Raises BadRequest."""
    if mode not in MODES:
        raise BadRequest(f"mode is {mode[:40]!r}; one of {', '.join(MODES)}", param="mode")
    policy, chance = policy_class(mode)(), random.Random(SEED)
    now: list[Candidate] = []
    then: list[Candidate] = []
    taken: list[Decision] = []
    for turn, decision in enumerate(decisions):
        by_id = {one.instance: one for one in sorted(decision.candidates, key=lambda one: one.instance)}
        if decision.chosen not in by_id:
            continue
        found = list(by_id.values())
        question = Question(
            list(by_id),
            [one.requests for one in found],
            chance,
            lambda decision=decision, found=found: costs(decision, found),  # type: ignore[misc]
            turn,
        )
        now.append(by_id[decision.chosen])
        then.append(by_id[choose(policy, question).instance])
        taken.append(decision)
    known = [
        (computed(decision, one), one.requests, first_ms[decision.request])
        for decision, one in zip(taken, now, strict=True)
        if decision.request in first_ms
    ]
    weights = fit(known) if len(known) >= ENOUGH else None
    return WhatIf(
        mode=mode,
        decisions=len(taken),
        changed=sum(before.instance != after.instance for before, after in zip(now, then, strict=True)),
        blocks=sum(blocks(one) for one in taken),
        reused=sum(one.overlap for one in now),
        reused_then=sum(one.overlap for one in then),
        ttft_ms=_median(weights, taken, now),
        ttft_ms_then=_median(weights, taken, then),
    )


def blocks(decision: Decision) -> int:
    """Blocks of a prompt."""
    return -(-decision.tokens // max(1, decision.block_size))


def computed(decision: Decision, candidate: Candidate) -> float:
    """Tokens of a prompt that a worker would compute."""
    return max(0.0, decision.tokens - candidate.overlap * decision.block_size)


def costs(decision: Decision, found: Sequence[Candidate]) -> list[float]:
    """The costs that the router counted; where its policy counts none: blocks to compute, and requests."""
    if any(one.total for one in found):
        return [one.total for one in found]
    return [blocks(decision) - one.overlap + float(one.requests) for one in found]


def fit(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Least squares of `time = a + b tokens + c requests`. A little of ridge keeps it solvable where all are equal."""
    sums = [[0.0] * 4 for _ in range(3)]
    for tokens, requests, time in rows:
        line = (1.0, tokens, requests, time)
        for row in range(3):
            for column in range(4):
                sums[row][column] += line[row] * line[column]
    for row in range(1, 3):
        sums[row][row] += 1e-6 * len(rows)
    for row in range(3):
        for other in range(3):
            if other != row:
                factor = sums[other][row] / sums[row][row]
                sums[other] = [one - factor * two for one, two in zip(sums[other], sums[row], strict=True)]
    a, b, c = (sums[row][3] / sums[row][row] for row in range(3))
    return a, b, c


def _median(
    weights: tuple[float, float, float] | None, decisions: Sequence[Decision], chosen: Sequence[Candidate]
) -> float | None:
    if weights is None or not decisions:
        return None
    a, b, c = weights
    pairs = zip(decisions, chosen, strict=True)
    return max(0.0, median([a + b * computed(decision, one) + c * one.requests for decision, one in pairs]))
