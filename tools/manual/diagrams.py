"""Diagrams of the manual: the processes of two nodes, the messages of a request, the packages."""

from .svg import WIDTH, Colors, arrow, bar, box, line, picture, text

NOTE = "tools/manual/diagrams.py"


def architecture(colors: Colors) -> str:
    """The processes of two nodes, and who talks to whom."""
    top, low, bottom = 78, 186, 246
    parts = [_node(colors, 210, 1, 220, 31, "OpenAI or Anthropic client")]
    for left, width, name in ((1, 434, "node 1"), (475, 244, "node 2")):
        parts += [box(left, 52, width, 220, colors.theirs, dashed=True), text(left + 10, 69, name, colors.quiet)]
    parts += [_node(colors, 20, top, 150, 60, "command", "dynamo serve, ps, ...")]
    parts += [_node(colors, 20, low, 150, 60, "daemon", "starts, watches, ends")]
    parts += [_node(colors, 225, top, 190, 60, "ingress process", "frontend, processor, router", strong=True)]
    parts += [_node(colors, 225, low, 190, 60, "worker process", "one engine", strong=True)]
    parts += [_node(colors, 500, top, 190, 60, "worker process", "one engine", strong=True)]
    parts += [_node(colors, 500, low, 190, 60, "daemon", "starts, watches, ends")]
    parts += [arrow(320, 32, 320, top, colors.ours), text(328, 48, "HTTP", colors.quiet, size=12)]
    parts += [arrow(320, top + 60, 320, low, colors.ours), text(328, 166, "unix socket", colors.quiet, size=12)]
    parts += [arrow(415, top + 30, 500, top + 30, colors.ours), text(442, top + 22, "NATS", colors.quiet, size=12)]
    parts += [arrow(95, top + 60, 95, low, colors.theirs), text(103, 166, "control socket", colors.quiet, size=12)]
    parts += [line(170, low + 20, 197, low + 20, colors.theirs, dashed=True)]
    parts += [line(197, low + 20, 197, top + 45, colors.theirs, dashed=True)]
    parts += [line(197, top + 45, 225, top + 45, colors.theirs, dashed=True)]
    parts += [line(170, low + 40, 225, low + 40, colors.theirs, dashed=True)]
    parts += [line(595, top + 60, 595, low, colors.theirs, dashed=True)]
    parts += [line(95, bottom, 95, 292, colors.third), line(95, 292, 595, 292, colors.third)]
    parts += [line(595, 292, 595, bottom, colors.third)]
    parts += [text(345, 286, "etcd: leases and model cards", colors.quiet, anchor="middle", size=12)]
    keys = ((colors.ours, "requests and tokens"), (colors.theirs, "supervision, commands"), (colors.third, "registry"))
    for place, (color, words) in enumerate(keys):
        parts += [bar(20 + 190 * place, 308, 12, 12, color), text(38 + 190 * place, 319, words, colors.text, size=12)]
    return picture(326, parts, NOTE, "Two nodes, each with a daemon; one has an ingress process, both have workers.")


LIVES = ("client", "frontend", "processor", "router", "worker")
MESSAGES = (
    (0, 1, "POST chat/completions"),
    (1, 1, "check key, limits, fields"),
    (1, 2, "job"),
    (2, 2, "template, tokenizer"),
    (2, 3, "token blocks"),
    (3, 3, "score live workers"),
    (3, 2, "placement"),
    (2, 4, "token ids, sampling, stop conditions"),
    (4, 2, "one frame per engine step"),
    (2, 1, "text, calls"),
    (1, 0, "server-sent event"),
    (0, 1, "the client leaves"),
    (1, 4, "cancel: the slot of the engine is free"),
)
"""From, to (places in `LIVES`), and what is sent; equal places: what is done there."""
LOOP = (8, 10)
"""The first and the last message that repeats."""


def request(colors: Colors) -> str:
    """The messages of one request, from top to bottom."""
    row, top, last = 27, 44, 44 + 27 * len(MESSAGES)
    at = [60 + 150 * place for place in range(len(LIVES))]
    parts = []
    for place, name in enumerate(LIVES):
        parts += [_node(colors, at[place] - 50, 1, 100, 27, name, strong=place == len(LIVES) - 1)]
        parts += [line(at[place], 28, at[place], last, colors.theirs_soft)]
    for number, (sender, receiver, words) in enumerate(MESSAGES):
        base = top + row * number + 14
        start, end = at[sender], at[receiver]
        if sender == receiver:
            parts += [
                bar(start - 4, base - 14, 8, 18, colors.third),
                text(start + 10, base, words, colors.text, size=12),
            ]
            continue
        ahead = end > start
        color = colors.alarm if number > LOOP[1] else colors.ours
        parts += [arrow(start, base + 2, end, base + 2, color)]
        parts += [text((start + end) / 2, base - 3, words, colors.text, anchor="middle", size=12)] if ahead else []
        parts += [] if ahead else [text((start + end) / 2, base - 3, words, colors.quiet, anchor="middle", size=12)]
    first = top + row * LOOP[0] - 4
    parts += [box(2, first, WIDTH - 4, row * (LOOP[1] - LOOP[0] + 1) + 2, colors.theirs, dashed=True)]
    parts += [text(10, first + 14, "each step", colors.quiet, size=12)]
    return picture(
        last + 4, parts, NOTE, "A request goes from client to worker, and its tokens come back step by step."
    )


def packages(colors: Colors) -> str:
    """The layers of the code: features and tools upon the core."""
    parts = [_node(colors, 60, 1, 340, 49, "features", "LoRA, embeddings, batches, planner, prefill, tiers, ...")]
    parts += [_node(colors, 450, 1, 210, 49, "tools", "simulator, benchmarks, manual")]
    parts += [arrow(230, 50, 230, 92, colors.third), text(240, 76, "extension points", colors.quiet, size=12)]
    parts += [arrow(555, 50, 555, 92, colors.theirs)]
    parts += [box(1, 92, WIDTH - 2, 176, colors.theirs, dashed=True), text(12, 110, "core", colors.quiet)]
    rows = (
        (
            ("http, ingress", "API, template, text"),
            ("router, migration", "where, and where next"),
            ("worker, engine", "tokens"),
        ),
        (("cli, control", "commands"), ("daemon", "graphs, processes"), ("graph, sdk", "what users write")),
    )
    for place, names in enumerate(rows):
        for column, (name, words) in enumerate(names):
            left, top = 16 + 172 * column, 120 + 72 * place
            parts += [_node(colors, left, top, 150, 54, name, words, strong=not place)]
            if not place and column:
                parts += [arrow(left - 22, top + 27, left, top + 27, colors.ours)]
    parts += [_node(colors, 550, 120, 152, 126, "kernel", "actor, transport,", "discovery, message")]
    parts += [arrow(510, 147, 550, 147, colors.theirs), arrow(510, 219, 550, 219, colors.theirs)]
    return picture(
        270, parts, NOTE, "Features and tools build upon the core; all packages of the core build upon the kernel."
    )


def _node(
    colors: Colors, left: int, top: int, width: int, height: int, name: str, *more: str, strong: bool = False
) -> str:
    """A box with a name and lines of smaller text."""
    middle, base = left + width / 2, top + height / 2 + 5 - 8 * len(more)
    lines = [text(middle, base, name, colors.text, bold=True, anchor="middle")]
    lines += [
        text(middle, base + 17 * (place + 1), words, colors.quiet, anchor="middle", size=12)
        for place, words in enumerate(more)
    ]
    return box(left, top, width, height, colors.ours if strong else colors.theirs) + "".join(lines)
