"""A console with 200 workers, 10,000 requests, and hostile texts in every field: real routes, a real browser."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from dynamod.runtime.statistics import ProcessStatistics

from ..served import Served, record, row, serving

FRAME_MS = 50
MARK = "hostile-mark"
HOSTILE = [
    "<script>window.hostile=1</script>",
    "<img src=x onerror=window.hostile=1>",
    "<svg onload=window.hostile=1>",
    '"><script>window.hostile=1</script>',
    "' onmouseover='window.hostile=1",
    "javascript:window.hostile=1",
    "</style><script>window.hostile=1</script>",
    "</textarea><img src=x onerror=window.hostile=1>",
    "<iframe srcdoc='<script>parent.hostile=1</script>'></iframe>",
    "<a href='javascript:window.hostile=1'>x</a>",
    "${window.hostile=1}",
    "{{constructor.constructor('window.hostile=1')()}}",
    "</title><script>window.hostile=1</script>",
    "<!--<script>window.hostile=1//-->",
    "<details open ontoggle=window.hostile=1>",
    "<math><mtext></mtext><script>window.hostile=1</script></math>",
    'data: {"x":1}\n\nevent: hello\ndata: {"admin":true}',
    "\u202e\u2066hidden\u2069",
    "\x00\x1b[31m\x07",
    "%3Cscript%3Ewindow.hostile=1%3C/script%3E",
]
TEXTS = [f"{one}{MARK}{number}" for number in range(10) for one in HOSTILE]


@contextmanager
def console(prepare: Callable[[Served], None], **options: Any) -> Iterator[Served]:
    """The routes with a daemon of the test, in a thread of their own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: list[Served] = []

    async def run() -> None:
        async with serving(**options) as served:
            served.daemon.every = 1.0
            prepare(served)
            found.append(served)
            over.clear()
            ready.set()
            await over.wait()

    over = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="console")
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()


def large(served: Served) -> None:
    rows = [row(f"agg/Worker.{number}", pid=number + 10, running=number % 3) for number in range(200)]
    engine = {"running": 1.0, "waiting": 0.0, "active_blocks": 50.0, "total_blocks": 100.0, "tokens": 5.0}
    told = {one.process: msgspec.to_builtins(ProcessStatistics({}, {"Worker": {**engine}}, None)) for one in rows}
    served.daemon.look = msgspec.structs.replace(served.daemon.look, rows=rows, statistics=told)
    for number in range(1000):
        served.recorder.take(record(number))


def hostile(served: Served) -> None:
    daemon, rows = served.daemon, []
    for number, text in enumerate(TEXTS):
        fields = dict.fromkeys(("last_error", "detail", "doing", "role", "component"), text) | {"gpus": [text]}
        state = ["Ready", "Fatal", text][number % 3]
        rows.append(row(f"agg/{text}", pid=number + 10, running=1, state=state, phases={text: 1.0}, **fields))
        error = text if number % 2 else ""
        named = dict.fromkeys(("id", "model", "key", "endpoint", "client", "finish", "process"), text)
        served.recorder.take(record(number, error=error, notes={text: text}, **named))
    told = {one.process: msgspec.to_builtins(ProcessStatistics({}, {"Worker": {"running": 1.0}}, None)) for one in rows}
    daemon.look = msgspec.structs.replace(daemon.look, node=TEXTS[0], rows=rows, statistics=told)
    problems = [{"found": text, "mend": text} for text in TEXTS]
    daemon.answers["status"] = {"problems": problems, "components": 1, "models": TEXTS, "graphs": []}
    daemon.answers["ps"] = [{"process": one.process, "models": [TEXTS[0]]} for one in rows]
    daemon.lines = [text.replace("\n", " ").encode() for text in TEXTS]
    tick = {
        "at": 1.0,
        "ready": 1,
        "starting": 0,
        "arrived": 1,
        "queued": 1,
        "replicas": 2,
        "tick": {"reason": TEXTS[1]},
    }
    daemon.answers["planner"] = [
        {**dict.fromkeys(("component", "process", "state"), text), "min": 1, "max": 2}
        | {"records": [{**tick, "refused": text}] * 2}
        for text in TEXTS[:40]
    ]
    for text in TEXTS[:20]:
        candidate = {"instance": 5, "process": text, "overlap": 1, "requests": 1, "total": 1.0, "terms": {text: 1.0}}
        fields = {**dict.fromkeys(("mode", "rule", "pool", "shadow_mode"), text), "tokens": 9, "block_size": 4}
        decision = {"chosen": 5, "shadow": 6, "candidates": [candidate], "excluded": [[7, text]], "tied": [], **fields}
        daemon.answers[f"requests/{quoted(text)}/decision"] = [decision]


def quoted(text: str) -> str:
    return quote(text, safe="")


def test_hostile_texts_stay_texts(browse: Callable[..., Any]) -> None:
    with console(hostile, admin=True) as served:
        page = browse()
        page.open(served.url)
        page.sees(".problems li", MARK)
        assert page.page.locator(".problems li").count() == len(TEXTS)
        safe(page)
        page.go("Requests")
        page.sees(".line a", MARK)
        for index in (0, 3, 8):
            page.page.locator(".line a").nth(index).click()
            page.sees(".facts dd", MARK)
            safe(page)
        for text in TEXTS[:20]:
            page.page.goto(f"{served.url}/#/requests/{quoted(text)}")
            page.sees("h2", MARK)
            safe(page)
        page.go("Workers")
        assert page.sees("td a", MARK).count() == 1
        page.page.locator("td a").nth(1).click()
        page.sees(".log", f"{MARK}9")
        safe(page)
        page.go("Models")
        page.sees("td", MARK)
        safe(page)
        page.go("Planner")
        page.sees("td", MARK)
        safe(page)
        assert [one for one in page.errors if "v1/models" not in one and "404" not in one] == []


def safe(page: Any) -> None:
    """No script has run, no element has come of a text, and the rights are those that the server has said."""
    assert page.page.evaluate("window.hostile") is None
    for selector in ("img", "iframe", "math", "script", "[onerror]", "[onload]", "[ontoggle]", "[onmouseover]"):
        assert page.page.locator(f"main {selector}").count() == 0, selector
    assert page.page.locator("main a[href^='javascript:' i]").count() == 0
    assert page.page.locator("body style, body script").count() == 0


def frames(page: Any, selector: str) -> list[float]:
    """Milliseconds that the page's thread computes for each of 60 steps of a scroll: script, style, layout, paint.

    CPU time and not the clock, because other processes of the machine count else.
    """
    found: list[float] = []
    devtools = page.page.context.new_cdp_session(page.page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return 1000.0 * next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    before = spent()
    for _ in range(60):
        page.page.evaluate(SCROLL, selector)
        now = spent()
        found.append(now - before)
        before = now
    return found


SCROLL = """(selector) => new Promise((resolve) => {
    const box = document.querySelector(selector);
    box.scrollTop += Math.max(40, box.scrollHeight / 70);
    requestAnimationFrame(() => requestAnimationFrame(resolve)); // the frame is drawn
})"""


def test_long_lists_scroll(browse: Callable[..., Any]) -> None:
    with console(large) as served:
        page = browse()
        page.open(served.url)
        page.sees("svg .tile", "Worker.199")
        assert page.page.locator("svg .tile").count() == 200
        times = {"picture": frames(page, ".picture")}
        page.go("Requests")
        for begin in range(1000, 10_000, 1000):  # the browser keeps 10,000; an event has 1,000 at most
            for number in range(begin, begin + 1000):
                served.recorder.take(record(number))
            page.sees(".card header .muted", f"{begin + 1000} ended")
        assert page.page.locator(".line").count() < 60
        times["requests"] = frames(page, ".listbox")
        assert page.page.evaluate("document.querySelector('.listbox').scrollTop") > 100_000
        page.go("Workers")
        times["workers"] = frames(page, ".scroll")
        for name, found in times.items():
            found.sort()
            print(f"{name}: median {found[30]:.1f} ms, 95th percentile {found[56]:.1f} ms, most {found[-1]:.1f} ms")
        assert {name: found[-1] for name, found in times.items() if found[-1] >= FRAME_MS} == {}
        assert page.errors == []


@pytest.mark.parametrize("look", ["dark", "narrow"])
def test_a_large_fleet_is_accessible(browse: Callable[..., Any], look: str) -> None:
    with console(large, admin=True) as served:
        page = browse(look)
        page.open(served.url)
        for name in ("Overview", "Requests", "Workers"):
            page.go(name)
            page.shoot(f"large-{name.lower()}-{look}")
            assert page.find() == [], name
