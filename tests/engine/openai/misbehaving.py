"""A server that misbehaves on purpose: the model's name says how. Also a program, for tests that kill it.

python misbehaving.py PORT [--silent] [--child FILE]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

ANSWERS = {"401": 401, "403": 403, "unknown": 404, "busy": 429, "broken": 500, "loading": 503, "wrong": 400}


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish, **more}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


class Misbehaving:
    """`seen`: the bodies that came. `open`: streams whose clients are there. `posts`: how many were sent."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.open = self.posts = 0
        self.down = False  # /models fails
        self.endless = False  # /models has no end
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_post("/v1/chat/completions", self.answer)
        self.app.router.add_post("/v1/completions", self.answer)
        self.app.router.add_post("/v1/embeddings", self.embed)

    async def models(self, request: web.Request) -> web.StreamResponse:
        if self.endless:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:  # until the client leaves
                await response.write(b" " * 1_000_000)
        if self.down:
            return web.Response(status=503, text="down on purpose")
        if request.headers.get("Authorization") == "Bearer wrong-key":
            return web.json_response({"error": {"message": "no such key: wrong-key"}}, status=401)
        return web.json_response({"object": "list", "data": [{"id": "theirs"}, {"id": "other"}]})

    async def embed(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        vectors = {"infinite": "1e308, 1e308", "zero": "0, 0", "words": '"a", "b"'}
        if body["model"] == "no-end":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:  # until the client leaves
                await response.write(b" " * 1_000_000)
        text = vectors.get(body["model"], "3, 4")
        data = f'{{"data": [{{"index": 0, "embedding": [{text}]}}], "usage": {{"prompt_tokens": 2}}}}'
        return web.Response(text=data, content_type="application/json")

    def repeats(self, how: str, key: str) -> web.Response | None:
        """Answers that have the request's key in them; None for another name."""
        if how.startswith("redirects"):
            return web.Response(status=int(how.split()[1]), headers={"Location": f"http://127.0.0.1:1/?{key}"})
        if not how.startswith("repeats"):
            return None
        _, form, place = how.split()
        said = "x" * int(place) + f" you sent {key}"
        if form == "event":
            return web.Response(text=f'data: {{"error": {json.dumps(said)}}}\n\n', content_type="text/event-stream")
        if form == "none":
            return web.Response(text=f"data: {said}\n\n", content_type="text/event-stream")
        if form == "typed":
            text = f"data: {json.dumps({'choices': said})}\n\n"
            return web.Response(text=text, content_type="text/event-stream")
        if form == "html":
            return web.Response(text=f"<p>{said}", content_type="text/html")
        if form == "plain":
            return web.Response(text=said, status=500)
        error = {"message": said, "param": key, "code": key}
        return web.json_response({"error": error}, status=int(form))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.headers.append(request.headers)
        self.posts += 1
        how = body["model"]
        if (again := self.repeats(how, request.headers.get("Authorization", ""))) is not None:
            return again
        if how in ANSWERS:
            error = {"message": f"{how} on purpose", "param": "temperature", "code": "purpose"}
            return web.json_response({"error": error}, status=ANSWERS[how])
        if how == "html":
            return web.Response(text="<h1>Log in\n first</h1>", content_type="text/html")
        if how == "whole":
            return web.json_response({"choices": [{"message": {"content": "hello"}}]})
        if how == "closes":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        self.open += 1
        try:
            await self._stream(response, request, how)
        finally:
            self.open -= 1
        return response

    async def _stream(self, response: web.StreamResponse, request: web.Request, how: str) -> None:
        async def send(*values: Any) -> None:
            for value in values:
                data = value if isinstance(value, str) else json.dumps(value)
                await response.write(f"data: {data}\n\n".encode())

        transport: Callable[[], None] = request.transport.abort  # type: ignore[union-attr]
        if how == "ends-at-once":
            return
        if how == "nonsense":
            await response.write(b"data: nonsense\n\n")
            return
        if how == "no-end":
            for _ in range(10):
                await response.write(b"x" * 1_000_000)
            return
        if how == "silent":
            await asyncio.sleep(60)
        await send(chunk({"role": "assistant", "content": ""}))
        if how == "error-event":
            await send(chunk({"content": "a"}), {"error": {"message": "out of memory"}})
            return
        if how == "tools":
            call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
            more = {"index": 0, "function": {"arguments": ": 1}"}}
            await send(chunk({"reasoning_content": "so "}), chunk({"reasoning_content": "so"}))
            await send(chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls"))
            await send(usage(7, 9), "[DONE]")
            return
        if how == "logprobs":
            entry = {"token": "hi", "bytes": [104, 105], "logprob": -0.5, "top_logprobs": []}
            await send(
                chunk({"content": "hi"}, logprobs={"content": [entry]}), chunk({}, "stop"), usage(1, 1), "[DONE]"
            )
            return
        for number in range(3):
            await send(chunk({"content": f"{number} "}))
        if how == "cut":
            transport()
            await asyncio.sleep(1)
        if how == "ends-early":
            return
        if how in ("stalls", "forever"):
            await asyncio.sleep(60)
        if how == "drips":
            for _ in range(600):
                await send(chunk({"content": "."}))
                await asyncio.sleep(0.05)
        if how == "late-usage":
            await asyncio.sleep(2)
        await send(chunk({}, "length"))
        if how == "late-usage":
            await asyncio.sleep(0.5)
        if how == "no-usage":
            await send("[DONE]")
            return
        if how == "no-done":
            await asyncio.sleep(60)
        await send(usage(11, 5), "[DONE]")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--silent", action="store_true", help="listen to nothing")
    parser.add_argument("--child", help="start a child that sleeps, and write both numbers to this file")
    arguments = parser.parse_args()
    if arguments.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(arguments.child).write_text(f"{os.getpid()} {child.pid}")
    if arguments.silent:
        print("listens to nothing", flush=True)
        asyncio.run(asyncio.sleep(600))
    web.run_app(Misbehaving().app, host="127.0.0.1", port=arguments.port, print=lambda *_: None)


if __name__ == "__main__":
    main()
