"""The control socket: HTTP and JSON under /v1 over a unix socket, for the command line and for curl."""

import array
import asyncio
import json
import logging
import os
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from dynamod import __version__
from dynamod.extension.command import Command, CommandCall, Peer, from_query
from dynamod.message.errors import DynamodError, UserError
from dynamod.observe.metrics import CONTENT_TYPE

from .commands import Commands, known
from .refusals import Refusal, refusal_of

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

log = logging.getLogger("dynamod.control")

SO_PEERGROUPS = 59
"""Linux: the groups that `usermod -aG` adds; SO_PEERCRED has only the first one."""
FOLLOW = 0.3
"""Seconds between looks for new log lines."""
SHORTEST, LONGEST = 0.1, 3600.0
"""Seconds between the events of a question that is followed."""


class Control:
    """Answers on a listener that `ControlSocket` bound; the peer's credentials decide about changes."""

    def __init__(self, node: "Node") -> None:
        self._node, self._commands = node, Commands(node, node.parts.around)
        self._runner: web.AppRunner | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve the commands, on a further listener when called again."""
        if self._runner is None:
            self._runner = await self._routes()
        await web.SockSite(self._runner, listener).start()

    async def _routes(self) -> web.AppRunner:
        app = web.Application(middlewares=[_errors])
        for command in known():
            for path in command.routes():
                if command.changes:
                    app.router.add_post(path, partial(self._change, command))
                else:
                    app.router.add_get(path, partial(self._read, command))
        app.router.add_get("/v1", self._index)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        return runner

    async def stop(self) -> None:
        """End open answers and close the listener."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _index(self, request: web.Request) -> web.Response:
        get, post = (
            [one.routes()[0].format(subject="{id}") for one in known() if one.changes is changes]
            for changes in (False, True)
        )
        return web.json_response({"version": __version__, "get": get, "post": sorted(post)})

    async def _read(self, command: Command[Any, Any], request: web.Request) -> web.StreamResponse:
        arguments = from_query(command, request.query)
        if subject := request.match_info.get("subject"):
            arguments[command.subject] = subject
        if command.name == "logs" and request.query.get("follow", "0") in ("1", "true", ""):
            return await self._follow(request, arguments)
        if (every := request.query.get("follow")) is not None and command.answer is not str:
            return await self._events(request, command, arguments, _interval(every))
        answer = await self._commands.call(command.name, arguments)
        if command.answer is str:
            return web.Response(body=answer.encode(), headers={"Content-Type": CONTENT_TYPE})
        return web.json_response(answer)

    async def _events(
        self, request: web.Request, command: Command[Any, Any], arguments: dict[str, Any], every: float
    ) -> web.StreamResponse:
        """The answer again and again, as server-sent events; the first one at once. An error is an event, too."""
        answer = await self._commands.call(command.name, arguments)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        while True:
            await response.write(b"data: %b\n\n" % msgspec.json.encode(answer))
            await asyncio.sleep(every)
            try:
                answer = await self._commands.call(command.name, arguments)
            except DynamodError as error:  # the status is sent already
                await response.write(b"event: error\ndata: %b\n\n" % msgspec.json.encode(refusal_of(error).message))
                return response

    async def _follow(self, request: web.Request, arguments: dict[str, Any]) -> web.StreamResponse:
        entries = await self._commands.call("logs", arguments)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        while True:
            for line in entries["lines"]:
                await response.write(f"{line}\n".encode())
            await asyncio.sleep(FOLLOW)
            try:
                entries = await self._commands.call("logs", {**arguments, "after": entries["next"], "lines": 10_000})
            except UserError as error:  # the status is sent already
                await response.write(f"error: {error.line()}\n".encode())
                return response

    async def _change(self, command: Command[Any, Any], request: web.Request) -> web.Response:
        uid, groups, pid = _peer(request)
        peer = Peer(uid if uid >= 0 else None, pid)
        subject = request.match_info.get("subject")
        named = {command.subject: subject} if subject else {}
        if not self._may_change(uid, groups):
            refusal = Refusal(403, f"user {uid} may not {command.name}", "ask the owner of the daemon, or root")
            self._commands.refused(CommandCall(command, named, peer=peer), refusal)
            return _refused(refusal)
        try:
            arguments = json.loads((await request.text()).strip() or "{}")
        except ValueError as error:
            return _error(400, f"the body is not JSON: {error}", "send an object, or nothing")
        if not isinstance(arguments, dict):
            return _error(400, "the body is no JSON object", 'for example {"component": "Worker"}')
        arguments |= {**named, **from_query(command, request.query)}
        return web.json_response(await self._commands.call(command.name, arguments, peer=peer))

    def _may_change(self, uid: int, groups: set[int]) -> bool:
        owner = os.stat(self._node.place.socket).st_gid
        return uid in (0, os.getuid()) or (owner != 0 and owner in groups)


def _interval(text: str) -> float:
    """Seconds between events. Raises UserError."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not SHORTEST <= found <= LONGEST:
        raise UserError(f"follow is {text[:40]!r}", f"give seconds from {SHORTEST:g} to {LONGEST:g}")
    return found


def _peer(request: web.Request) -> tuple[int, set[int], int]:
    """User, groups and process of the client, from the kernel; user -1 and process 0 when it does not say."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    option = getattr(socket, "SO_PEERCRED", None)
    if sock is None or option is None:
        return os.getuid() if option is None else -1, set(), 0  # elsewhere the socket's mode is the guard
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    try:
        others = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)  # 256 groups, the most Python takes
    except OSError:
        others = b""
    return uid, {gid, *array.array("I", others[: len(others) // 4 * 4])}, pid


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}", "see /v1")
    except Exception as error:
        refusal = refusal_of(error)
        if refusal.status == 500 and not isinstance(error, DynamodError):
            log.exception("%s %s failed", request.method, request.path)
        return _refused(refusal)
    return response


def _refused(refusal: Refusal) -> web.Response:
    return _error(refusal.status, refusal.message, refusal.hint, refusal.code)


def _error(status: int, message: str, hint: str, code: str = "") -> web.Response:
    error = {"message": message, "hint": hint} | ({"code": code} if code else {})
    return web.json_response({"error": error}, status=status)
