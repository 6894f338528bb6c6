"""The console of a real fleet in a real browser: each page, each action, streams, and what happens when things die."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.asking import chat_body
from tests.e2e.conftest import ROOT

from .conftest import LOOKS

PAGES = ("Overview", "Requests", "Models", "Chat", "Workers", "Planner", "Keys and batches")
FLEET = ("-f", "configs/agg_router.yaml", "--Worker.engine=echo_core", "--Worker.ServiceArgs.workers=2")
ADMIN = "--Frontend.console-admin=true"
KEYS = "- {name: boss, key: boss-key-000, admin: true}\n- {name: guest, key: guest-key-00}\n"


def fleet(machine: Any, *more: str) -> str:
    command = machine.start("dynamo", "serve", *FLEET, "--Frontend.port=0", *more, cwd=ROOT)
    return str(command.ready())


def traffic(machine: Any, url: str, count: int = 12) -> None:
    def ask(number: int) -> None:
        body = {**chat_body("model, say " + "something " * (number % 5 + 3)), "max_tokens": 24}
        machine.ask(url, "/v1/chat/completions", body)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    machine.ask(url, "/v1/chat/completions", {"messages": []})


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_each_page_is_good_in_each_look(machine: Any, browse: Callable[..., Any], look: str) -> None:
    url = fleet(machine, ADMIN)
    page = browse(look)
    page.open(url)
    traffic(machine, url)
    found: dict[str, list[str]] = {}
    for name in PAGES:
        page.go(name)
        if name == "Overview":
            page.sees(".chart canvas")
            page.sees("svg .tile.good")
            page.sees("svg .title", "agg_router · Worker · 2 · aggregated · sample")
            page.sees(".good", "Nothing")
        elif name == "Requests":
            page.sees(".line a").click()
            page.sees(".timeline li", "decode")
            page.sees("tr.chosen", "chosen")
            page.page.get_by_role("button", name="Replay").click()
            page.sees(".said", "decisions")
        elif name == "Models":
            page.sees("td", "sample")
            page.sees("pre", url.rpartition("/")[0] if url.count("/") > 2 else "/v1/chat/completions")
        elif name == "Chat":
            page.page.fill("#prompt", "What is a prefix cache?")
            page.page.keyboard.press("Enter")
            page.sees(".meter dd", "Worker.")
        elif name == "Workers":
            page.sees("td a", "Worker.0").click()
            page.sees(".facts div", "per second, none runs now")
            page.sees(".log", "echo_core")
        if name not in ("Planner", "Keys and batches"):  # they are empty here, other tests draw them
            page.shoot(f"console-{name.lower()}-{look}")
        found[name] = page.find()
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert page.errors == []


def test_processes_are_changed_and_their_logs_grow(machine: Any, browse: Callable[..., Any]) -> None:
    url = fleet(machine, ADMIN)
    page = browse()
    page.open(url)
    page.go("Workers")
    page.sees("td a", "Worker.0").click()
    act(page, "Scale", lambda: page.page.get_by_role("spinbutton", name="Processes").fill("3"))
    page.sees("td a", "Worker.2")
    assert len(machine.ps("Worker")) == 3
    before = {row["pid"] for row in machine.ps("Worker")}
    act(page, "Restart")
    machine.until(lambda: not before & {row["pid"] for row in machine.ps("Worker") if row["state"] == "Ready"})
    page.go("Workers")
    page.sees("td a", "ingress.0").click()
    log = page.sees(".log", "listening")
    machine.ask(url, "/v1/chat/completions", chat_body("hello"))
    page.sees(".log", "path=/v1/chat/completions")
    assert log.count() == 1
    assert page.errors == []


def act(page: Any, name: str, prepare: Callable[[], object] = lambda: None) -> None:
    prepare()
    page.page.get_by_role("button", name=name, exact=True).first.click()
    page.page.locator("dialog[open]").get_by_role("button", name=name, exact=True).click()
    page.sees(".said", "done")


def test_a_drained_component_leaves(machine: Any, browse: Callable[..., Any]) -> None:
    url = fleet(machine, ADMIN)
    page = browse()
    page.open(url)
    page.go("Workers")
    page.sees("td a", "Worker.0").click()
    page.page.get_by_role("button", name="Drain").first.click()
    page.page.locator("dialog[open]").get_by_role("button", name="Drain").click()
    page.sees(".said.bad", "no worker other than")  # the model would lose its workers
    assert len(machine.ps("Worker")) == 2


def test_a_chat_streams_and_stops_in_two_panes(machine: Any, browse: Callable[..., Any]) -> None:
    url = fleet(machine)
    page = browse()
    page.open(url)
    page.go("Chat")
    page.page.get_by_role("button", name="Two side by side").click()
    for most in page.page.get_by_label("Most tokens").all():
        most.fill("1200")
    page.page.fill("#prompt", "word " * 400)
    page.page.keyboard.press("Enter")
    page.sees("button", "Stop")
    page.sees(".said.model p", "word word word word word word")
    page.page.get_by_role("button", name="Stop").click()
    page.sees(".said.model .bad", "stopped")
    page.sees("button", "Send")
    page.page.get_by_role("button", name="Clear").click()
    page.page.fill("#prompt", "a short one")
    page.page.keyboard.press("Enter")
    meters = page.page.locator(".said.model .meter")
    machine.until(lambda: meters.count() == 2 and all("Worker." in text for text in meters.all_inner_texts()))
    assert re.search(r"TTFT\s+[\d.]+ m?s", meters.first.inner_text())
    page.page.get_by_text("More").first.click()
    page.page.get_by_label("JSON Schema of the answer").first.fill("{no json")
    page.page.fill("#prompt", "again")
    page.page.keyboard.press("Enter")
    page.sees(".said.model .bad", "JSON Schema is no JSON")
    assert page.errors == []


def test_a_killed_worker_is_seen_live(machine: Any, browse: Callable[..., Any]) -> None:
    url = fleet(machine)
    page = browse()
    page.open(url)
    page.sees("svg .tile.good", "Worker.0")
    page.go("Workers")
    row = page.page.locator("tr", has=page.page.get_by_role("link", name=re.compile("Worker.0")))
    assert row.locator("td").nth(11).inner_text() == "0"
    killed = next(one["pid"] for one in machine.ps("Worker") if one["process"].endswith("Worker.0"))
    os.kill(killed, signal.SIGKILL)
    begun = time.monotonic()
    machine.until(lambda: row.locator("td").nth(11).inner_text() == "1")
    assert time.monotonic() - begun < 10
    machine.until(lambda: "Ready" in row.inner_text())
    assert page.errors == []


def test_a_lost_connection_says_so_and_comes_back(machine: Any, browse: Callable[..., Any]) -> None:
    url = fleet(machine)
    page = browse()
    page.open(url)
    (ingress,) = {row["pid"] for row in machine.ps() if "ingress" in row["process"]}
    os.kill(ingress, signal.SIGKILL)
    page.sees(".banner", "connection is lost")
    page.sees(".connection.live")
    assert page.page.locator(".banner").count() == 0


def test_a_key_is_asked_for_and_an_admin_sees_more(machine: Any, browse: Callable[..., Any]) -> None:
    keys = machine.folder / "keys.yaml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    url = fleet(machine, f"--Frontend.client-keys-file={keys}")
    page = browse()
    page.page.goto(url)
    page.sees(".connection.key")
    assert page.find() == []
    for key, waits in (("wrong-key-000", ".connection.key"), ("guest-key-00", ".connection.live")):
        page.page.fill("input[name=key]", key)
        page.page.keyboard.press("Enter")
        page.sees(waits)
    page.go("Keys and batches")
    page.sees(".empty", "admin: true")
    page.go("Models")
    page.sees("pre", "Bearer KEY")
    page.page.get_by_role("button", name="Forget key").click()
    page.page.fill("input[name=key]", "boss-key-000")
    page.page.keyboard.press("Enter")
    page.sees(".connection.live")
    page.go("Keys and batches")
    page.sees("td", "guest")
    assert "guest-key-00" not in page.page.content()
    assert "boss-key-000" not in page.page.content()


def test_the_command_shows_a_daemon(machine: Any, browse: Callable[..., Any]) -> None:
    fleet(machine)
    command = machine.start("dynamo", "console", "--no-browser")
    url = command.prints(r"console: (http://\S+/#token=\S+)")[1]
    page = browse()
    page.open(url)
    assert "token" not in page.page.url
    page.sees("svg .tile.good", "Worker.0")
    page.go("Workers")
    page.sees("td a", "Worker.0").click()
    page.sees(".log", "echo_core")
    page.go("Chat")
    page.sees(".empty", "at a frontend")
    assert page.find() == []
    assert page.errors == []
    other = browse()
    other.page.goto(url.partition("#")[0])
    other.sees(".connection.key")
    command.end()
    page.sees(".banner", "connection is lost")


def test_a_planner_is_shown_and_paused(machine: Any, browse: Callable[..., Any]) -> None:
    words = ("-f", "configs/agg_planner.yaml", "--Frontend.port=0", "--Planner.adjustment-interval=1", ADMIN)
    url = machine.start("dynamo", "serve", *words, cwd=ROOT).ready()
    pages = {look: browse(look) for look in LOOKS}
    for page in pages.values():
        page.open(url)
        page.go("Planner")
    page = pages["light"]
    page.sees("p", "State active, 1 to 4 workers")
    page.sees("td", "no_data")  # nobody asks
    traffic(machine, url)
    arrived = page.page.locator("tbody tr td:nth-child(6)")
    machine.until(lambda: any(text not in ("0", "0.0") for text in arrived.all_inner_texts()))
    for look, page in pages.items():
        page.sees(".chart canvas")
        page.shoot(f"console-planner-{look}")
        assert page.find() == []
    page = pages["light"]
    page.page.get_by_role("button", name="Pause").click()
    page.sees("p", "State paused")
    page.page.get_by_role("button", name="Resume").click()
    page.sees("p", "State active")
    assert [error for page in pages.values() for error in page.errors] == []


def test_the_keyboard_is_enough(machine: Any, browse: Callable[..., Any]) -> None:
    url = fleet(machine, ADMIN)
    page = browse()
    page.open(url)
    press, focused = page.page.keyboard.press, "document.activeElement.textContent.trim() || document.activeElement.id"
    press("Tab")
    assert page.page.evaluate(focused) == "Skip to the content"
    press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "main"
    page.page.reload()
    page.sees(".connection.live")
    for name in ("Skip to the content", *PAGES[: PAGES.index("Workers") + 1]):
        press("Tab")
        assert page.page.evaluate(focused) == name
    press("Enter")
    page.sees("nav a[aria-current]", "Workers")
    page.sees("td a", "Worker.0").focus()
    press("Enter")
    page.sees(".log", "echo_core")
    page.page.get_by_role("button", name="Restart").focus()
    before = {row["pid"] for row in machine.ps("Worker")}
    press("Enter")
    page.sees("dialog[open]")
    press("Escape")
    machine.until(lambda: page.page.locator("dialog[open]").count() == 0)
    assert {row["pid"] for row in machine.ps("Worker")} == before, "it was cancelled"
    press("Enter")
    page.sees("dialog[open]")
    press("Tab")
    assert page.page.evaluate(focused) == "Restart"
    press("Enter")
    page.sees(".said", "done")
    assert not {row["pid"] for row in machine.ps("Worker")} & before
    assert page.errors == []
