#!/usr/bin/env python3
"""CPU time of a unary request in the ingress, alongside servers that do less: what is left to what the ingress adds.

floor.py [--model FOLDER] [--repeat 5]

In turn: `http`, a server of aiohttp that reads the JSON with msgspec and answers with a fixed one; `tokens`, which also
checks the request, renders the chat template and makes tokens, as the ingress does; `ingress`, that of `dynamo serve`
with echo_core. All answer 6 ms after the request, eight requests at a time, and pause their garbage collection alike.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402
import uvloop  # noqa: E402
from aiohttp import web  # noqa: E402
from load import Work, run  # noqa: E402
from sends import listening  # noqa: E402
from streams import Ours  # noqa: E402

from dynamod.message.openai import ChatRequest  # noqa: E402
from dynamod.message.tokens import count  # noqa: E402
from dynamod.preprocess.card import read_card  # noqa: E402
from dynamod.preprocess.locate import locate  # noqa: E402
from dynamod.preprocess.model import Model  # noqa: E402
from dynamod.runtime.garbage import settle  # noqa: E402

PAUSE = 0.006
"""Seconds from a request to its answer: the default pace of `streams.py`."""
WORK = Work("bench", requests=2000, streams=8, words=10, tokens=1, unary=True)


async def serve(level: str, model: str, port: int) -> None:
    """Answer requests until the process is ended."""
    count_tokens: Callable[[ChatRequest], int] = lambda _: 10  # noqa: E731
    if level == "tokens":
        loaded = Model.load(read_card(locate(model), name="bench"))
        count_tokens = lambda request: count(loaded.encode(loaded.prepare_chat(request), "r").token_ids)  # noqa: E731
    decoder = msgspec.json.Decoder(ChatRequest)

    async def answer(request: web.BaseRequest) -> web.Response:
        asked = decoder.decode(await request.read())
        tokens = count_tokens(asked)
        await asyncio.sleep(PAUSE)
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}
        body = {"id": "r", "object": "chat.completion", "created": 1, "model": asked.model, "choices": [choice]}
        return web.Response(body=msgspec.json.encode({**body, "usage": usage}), content_type="application/json")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    settle()
    await asyncio.Event().wait()


def started(level: str, model: str) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """Port and process of a server."""
    return listening("floor.py", "--serve", level, "{port}", "--model", model)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--serve", nargs=2, metavar=("LEVEL", "PORT"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.serve:
        uvloop.run(serve(a.serve[0], a.model, int(a.serve[1])))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ours = Ours(a.model, PAUSE * 1000)
    try:
        with started("http", a.model) as http, started("tokens", a.model) as tokens:
            servers = {"http": http, "tokens": tokens, "ingress": (ours.server.port, ours.server.ingress)}
            took: dict[str, list[float]] = {name: [] for name in servers}
            for turn in range(a.repeat + 1):
                for name, (port, pid) in servers.items():
                    result = asyncio.run(run(port, WORK, [pid]))
                    if result.errors:
                        raise SystemExit(f"{name}: {result.errors} requests failed")
                    if turn:  # the first turn warms up
                        took[name].append(result.ms_per_request(pid))
    finally:
        ours.stop()
    for name, found in took.items():
        print(f"{name:8} {statistics.median(found):.3f} ms per request ({min(found):.3f} to {max(found):.3f})")


if __name__ == "__main__":
    main()
