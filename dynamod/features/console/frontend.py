"""The console of a frontend."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.records import Records
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.ingress.api.endpoint import Frontend
from dynamod.ingress.api.home import LINKS, wants_page

from .access import is_local
from .api import ConsoleApi
from .asking import Daemon
from .pages import page
from .recorder import Recorder
from .settings import ConsoleSettings
from .watch import Watch


def add_console(frontend: Frontend, server: Server, settings: ConsoleSettings) -> None:
    """Serve the console at / to browsers, where a daemon can be asked."""
    if not frontend.control:
        return
    daemon, recorder = Daemon(frontend.control), Recorder(lambda: server.open)
    watch = Watch(daemon, recorder)
    api = ConsoleApi(
        server,
        daemon,
        watch,
        _once(frontend, server, recorder),
        frontend.backend.decisions,
        admin=settings.console_admin,
        serves_models=True,
        has={
            "batches": lambda: bool(getattr(frontend.settings, "batches_dir", "")),
            "on_demand": lambda: _loads_on_demand(frontend),
            "adapters": lambda: bool(getattr(frontend.settings, "allow_runtime_lora_updating", False)),
            "pull": lambda: bool(getattr(frontend.settings, "ollama_manage_models", False)),
        },
    )
    server.add(*api.routes(), Route("GET", "/", _root(server, server.find("GET", "/"))))

    async def run() -> None:
        try:
            await watch.run()
        finally:
            api.end()

    server.background.append(run)


def _loads_on_demand(frontend: Frontend) -> bool:
    return any(part.states() for part in frontend.backend.parts.values())


def _once(frontend: Frontend, server: Server, recorder: Recorder) -> Callable[[], Recorder]:
    """What has records made from its first call on: without an open console they cost nothing."""
    reads = False

    def recording() -> Recorder:
        nonlocal reads
        if not reads:
            reads = True
            if server.metrics.records is None:
                server.metrics.records = Records([recorder], server.settings.proxies, frontend.where)
            else:
                server.metrics.records.add(recorder)
        return recorder

    return recording


def _root(
    server: Server, before: Callable[[RequestContext], Awaitable[web.StreamResponse]]
) -> Callable[[RequestContext], Awaitable[web.StreamResponse]]:
    """The console for browsers that may use it. `before`: what answers others."""

    async def root(context: RequestContext) -> web.StreamResponse:
        request = context.request
        if not wants_page(request.headers):
            return json_response({**LINKS, "links": {**LINKS["links"], "console": "/console"}})
        if server.keys or is_local(request.headers, request.remote):
            return await page(context)
        return await before(context)

    return root
