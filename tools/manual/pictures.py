"""Pictures of the explanation pages: a kill, the choice of the router, prefill and decode, tiers."""

from dynamod.router.cost import TERMS

from .svg import WIDTH, Colors, arrow, bar, box, line, picture, text

LEFT, LANE, TICK = 120, 22, 8
"""Pixels: where lanes begin, their height, the width of a token."""
INK = "#1f2328"
"""Of texts upon the third color, in both themes."""


def kill(colors: Colors) -> str:
    """A stream whose worker is killed: tokens of two workers over time, and what the client sees."""
    step, first, gap = 13, 16, 52
    died = LEFT + step * first
    goes_on = died + gap
    parts = [_lane(colors, 24, "worker 0"), _lane(colors, 76, "worker 1"), _lane(colors, 128, "client")]
    parts += _tokens(LEFT, 24, first, step, colors.ours)
    parts += [
        line(died, 14, died, 158, colors.alarm, dashed=True),
        text(died + 6, 20, "kill -9", colors.alarm, bold=True),
    ]
    parts += [text(died + 6, 39, "its process is gone; the daemon starts a new one", colors.quiet)]
    parts += [bar(died + 20, 76, gap - 24, LANE, colors.third)]
    parts += _tokens(goes_on, 76, 24, step, colors.ours_soft)
    parts += [arrow(died + 12, 150, died + 12, 100, colors.third)]
    parts += _tokens(LEFT, 128, first, step, colors.ours) + _tokens(goes_on, 128, 24, step, colors.ours_soft)
    parts += [box(died + 2, 128, gap - 7, LANE, colors.alarm, dashed=True)]
    parts += [
        text(LEFT, 172, "tokens 1 to 16", colors.quiet),
        text(goes_on, 172, "tokens 17 and on: the same text", colors.quiet),
    ]
    parts += [
        text(
            LEFT,
            202,
            "Worker 1 gets the prompt and tokens 1 to 16 and computes them in one go",
            colors.text,
        )
    ]
    parts += [
        bar(LEFT - 20, 192, 12, 12, colors.third),
        box(LEFT - 20, 214, 12, 12, colors.alarm, round_=0, dashed=True),
    ]
    parts += [text(LEFT, 224, "The client sees a pause of 49 to 57 ms, measured over NATS, and no error", colors.text)]
    title = "A worker is killed, and another worker continues its stream."
    return picture(236, parts, "tools/manual/pictures.py", title)


WORKERS = {
    "worker A": {"cached": 6, "queued": 0, "active": 40},
    "worker B": {"cached": 0, "queued": 0, "active": 8},
    "worker C": {"cached": 8, "queued": 16, "active": 60},
}
"""An example, in blocks: of the prompt in the cache, of other prompts that wait, and in use with this prompt."""
PROMPT = 8
"""Blocks of the prompt of the example."""


def costs() -> dict[str, dict[str, float]]:
    """The terms of each worker's cost in the example, by the weights of the router."""
    found = {}
    for name, worker in WORKERS.items():
        blocks = {"prefill": PROMPT - worker["cached"], "queued": worker["queued"], "active": worker["active"]}
        found[name] = {term: TERMS[term].weight * count for term, count in blocks.items()}
    return found


def router(colors: Colors) -> str:
    """Overlap of a prompt with three caches, and the cost of each worker as stacked terms."""
    fills = {"prefill": colors.ours, "queued": colors.third, "active": colors.theirs}
    found = costs()
    best = min(found, key=lambda name: sum(found[name].values()))
    scale, bars = 24, 362
    parts = [
        text(90, 16, "blocks of the prompt in the cache", colors.quiet),
        text(bars, 16, "cost in blocks", colors.quiet),
    ]
    for place, (name, worker) in enumerate(WORKERS.items()):
        top = 30 + 52 * place
        parts.append(text(0, top + 15, name, colors.text, bold=name == best))
        for block in range(PROMPT):
            x = 90 + 26 * block
            parts.append(
                bar(x, top, 22, 22, colors.ours_soft)
                if block < worker["cached"]
                else box(x, top, 22, 22, colors.theirs)
            )
        left = float(bars)
        for term, blocks in found[name].items():
            parts.append(bar(left, top, blocks * scale, 22, fills[term]))
            left += blocks * scale
        total = f"{sum(found[name].values()):g}"
        parts.append(
            text(left + 6, top + 16, f"{total} ← chosen" if name == best else total, colors.text, bold=name == best)
        )
        facts = f"{worker['cached']} of {PROMPT} cached, {worker['active']} blocks in use"
        facts += f", {worker['queued']} blocks of prompts wait" if worker["queued"] else ""
        parts.append(text(90, top + 38, facts, colors.quiet, size=12))
    top = 30 + 52 * len(WORKERS) + 8
    words = {"prefill": "to compute", "queued": "that waits", "active": "in use"}
    for place, (term, color) in enumerate(fills.items()):
        x = 90 + 210 * place
        parts += [bar(x, top, 12, 12, color)]
        parts += [text(x + 18, top + 11, f"{TERMS[term].weight:g} × {term}: block {words[term]}", colors.text, size=12)]
    title = "The router adds up the cost at each worker and takes the lowest."
    return picture(top + 24, parts, "dynamod/router/cost.py", title)


def prefill(colors: Colors) -> str:
    """One aggregated worker that stops its answers for a prompt, and two workers that do not."""
    step, first, prompt = 13, 8, 200
    begins = LEFT + step * first
    parts = [text(0, 16, "One worker: a long prompt delays the tokens of every answer", colors.text, bold=True)]
    parts += [_lane(colors, 28, "worker"), *_tokens(LEFT, 28, first, step, colors.ours)]
    parts += [
        bar(begins, 28, prompt - 5, LANE, colors.third),
        text(begins + 8, 44, "another prompt", INK),
    ]
    parts += _tokens(begins + prompt, 28, 20, step, colors.ours)
    parts += [text(begins, 66, "no token for the readers", colors.alarm)]
    parts += [
        text(0, 102, "Two workers: the prompt is computed elsewhere, its KV blocks follow", colors.text, bold=True)
    ]
    parts += [_lane(colors, 114, "prefill worker"), bar(begins, 114, prompt - 5, LANE, colors.third)]
    parts += [text(begins + 8, 130, "another prompt", INK)]
    moved = begins + prompt + 20
    parts += [
        arrow(moved - 12, 138, moved - 12, 162, colors.third),
        text(moved, 154, "KV blocks: shared memory, TCP or NIXL", colors.quiet),
    ]
    parts += [
        line(moved - 25, 125, moved - 12, 125, colors.third),
        line(moved - 12, 125, moved - 12, 140, colors.third),
    ]
    parts += [_lane(colors, 166, "decode worker"), *_tokens(LEFT, 166, 44, step, colors.ours, height=LANE // 2 - 1)]
    parts += _tokens(LEFT + step * 25, 166 + LANE // 2 + 1, 19, step, colors.ours_soft, height=LANE // 2 - 1)
    parts += [
        bar(LEFT, 204, TICK, 12, colors.ours),
        text(LEFT + 16, 214, "tokens of the answers that run", colors.quiet),
    ]
    parts += [
        bar(LEFT + 240, 204, TICK, 12, colors.ours_soft),
        text(LEFT + 256, 214, "tokens of the new request", colors.quiet),
    ]
    title = "A separate prefill worker keeps long prompts away from the answers that run."
    return picture(224, parts, "tools/manual/pictures.py", title)


TIERS = (
    ("device", "memory of the engine", "fastest, smallest", 5),
    ("host", "kv_host_gb", "memory of the machine", 9),
    ("disk", "kv_disk_gb", "files, kept over a restart", 13),
)
"""Per tier the name, two lines about it, and how many blocks its box shows."""


def tiers(colors: Colors) -> str:
    """The three tiers of a worker, the ways of blocks between them, and another worker."""
    wide, gap, top = 180, 66, 34
    parts = []
    for place, (name, first, second, blocks) in enumerate(TIERS):
        left = 1 + place * (wide + gap)
        parts += [text(left + wide / 2, 20, name, colors.text, bold=True, anchor="middle")]
        parts += [box(left, top, wide, 88, colors.theirs)]
        for block in range(blocks):
            x, y = left + 16 + 22 * (block % 7), top + 10 + 20 * (block // 7)
            parts.append(
                bar(x, y, 16, 14, colors.ours if not place else colors.ours_soft if place == 1 else colors.theirs_soft)
            )
        parts += [text(left + wide / 2, top + 64, first, colors.text, anchor="middle")]
        parts += [text(left + wide / 2, top + 80, second, colors.quiet, anchor="middle", size=12)]
    for place, down in enumerate(("evicted", "copied")):
        left = wide + place * (wide + gap)
        parts += [arrow(left + 4, top + 26, left + gap - 4, top + 26, colors.theirs)]
        parts += [text(left + gap / 2, top + 20, down, colors.quiet, anchor="middle", size=12)]
        parts += [arrow(left + gap - 4, top + 58, left + 4, top + 58, colors.third)]
        parts += [text(left + gap / 2, top + 74, "loaded", colors.quiet, anchor="middle", size=12)]
    parts += [arrow(wide / 2, 176, wide / 2, top + 92, colors.third), box(1, 178, wide, 34, colors.theirs, dashed=True)]
    parts += [text(wide / 2, 199, "another worker", colors.text, anchor="middle")]
    parts += [text(wide / 2 + 10, 156, "read, with kv_peer_fetch", colors.quiet, size=12)]
    parts += [text(wide + gap, 186, "A block is loaded when that takes less time than computing it.", colors.text)]
    parts += [text(wide + gap, 206, "The worker measures both and tells the router.", colors.text)]
    title = "KV blocks move from device memory to host memory and to files, and back."
    return picture(220, parts, "tools/manual/pictures.py", title)


def _lane(colors: Colors, top: int, name: str) -> str:
    return text(0, top + 16, name, colors.text) + line(LEFT, top + LANE, WIDTH, top + LANE, colors.theirs_soft)


def _tokens(left: int, top: int, count: int, step: int, color: str, height: int = LANE) -> list[str]:
    return [bar(left + step * place, top, TICK, height, color) for place in range(count)]
