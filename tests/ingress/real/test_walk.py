"""The walk: the files that a chat request passes in the ingress on its way out, as dynamod/README.md lists them."""

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp

from dynamod.extension.installed import VARIABLE
from dynamod.transport.unix import UnixTransport

PACKAGE = Path(__file__).parents[3] / "dynamod"
BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": True}
LONGEST = 62
"""Files; the goal is 40."""
SENT = UnixTransport.open.__code__


@contextmanager
def walked(found: list[str]) -> Iterator[None]:
    """`found` gets the files of the package whose functions run in this thread, until a request has been sent."""

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            name = str(Path(code.co_filename).relative_to(PACKAGE))
            if name not in found:
                found.append(name)
        elif event == "return" and code is SENT:
            sys.setprofile(None)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def listed() -> list[str]:
    """The files of the list in the map of the package, in order."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^### The walk\n.*?```text\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].split()


async def test_the_walk_of_a_request(house: Any, serve: Any, until: Any) -> None:
    """Actors also have work of their own at times, so the shortest of several walks is the request's."""
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    url = await serve()
    walks: list[list[str]] = []
    async with aiohttp.ClientSession() as client:
        for _ in range(5):
            walks.append([])
            with walked(walks[-1]):
                async with client.post(f"{url}/v1/chat/completions", json=BODY) as answer:
                    assert answer.status == 200
                    await answer.read()
    walk, known = min(walks[1:], key=len), listed()  # the first request is a warm-up
    if os.environ.get(VARIABLE):  # a feature that is off leaves out its files, and core files that only it reaches
        known = [file for file in known if file in walk]
    text = textwrap.fill(" ".join(walk), 118, break_on_hyphens=False)
    assert walk == known, f"dynamod/README.md should list these {len(walk)} files:\n{text}"
    assert len(walk) <= LONGEST
