"""The console: pages in a browser that show the fleet, try its models and change it. `dynamo console`."""

from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

from .settings import ConsoleSettings

if TYPE_CHECKING:
    from dynamod.http.server import Server
    from dynamod.ingress.api.endpoint import Frontend


def _serve(frontend: "Frontend", server: "Server", _endpoints: Any) -> None:
    import msgspec

    own = msgspec.convert(frontend.settings, ConsoleSettings, from_attributes=True)
    if not own.console:
        return
    from .frontend import add_console

    add_console(frontend, server, own)


def _command() -> object:
    from .cli import app

    return app


FEATURE = Feature(
    "console",
    "a console in the browser at / of the frontend; dynamo console",
    requires=("top",),
    uses=("cluster",),
    serve=_serve,
    settings={"frontend": ConsoleSettings},
    commands={"console": _command},
)
