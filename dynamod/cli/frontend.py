"""`python -m dynamo.frontend`: the frontend alone; it finds the models of workers on this machine."""

import argparse
from collections.abc import Sequence

from dynamod import __version__
from dynamod.message.errors import UserError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UserError(message, "see python -m dynamo.frontend --help")


def run(argv: Sequence[str]) -> int:
    """Run the frontend."""
    from .run import RunArguments, ingress_graph, joined, router_flags
    from .serve import foreground

    p = _Parser(
        prog="python -m dynamo.frontend",
        description="An OpenAI server for all models that workers of this machine announce.",
        epilog="examples: python -m dynamo.frontend --http-port 8080; python -m dynamo.frontend --interactive",
    )
    add = p.add_argument
    add("-i", "--interactive", action="store_true", help="a chat in the terminal instead of a server")
    add("--model-name", metavar="NAME", help="with --interactive: the model to talk to (default: the first found)")
    add("--http-port", type=int, default=8000, metavar="PORT", help="port (default 8000)")
    add("--http-host", default="0.0.0.0", metavar="HOST", help="address (default 0.0.0.0)")
    router_flags(add)
    add("--api-key", metavar="KEY", help="clients must send this key")
    add("--api-key-file", metavar="FILE", help="file with one key per line")
    add("--tls-cert-path", metavar="FILE", help="serve HTTPS with this certificate")
    add("--tls-key-path", metavar="FILE", help="and this key")
    add("--socket", metavar="PATH", help="control socket")
    add("-v", "--verbose", action="count", default=0, help="-v debug, -vv trace")
    add("--version", action="version", version=f"dynamo.frontend {__version__}")
    try:
        flags = p.parse_args(joined(argv))
    except SystemExit as end:
        return int(end.code or 0)
    make = None
    if flags.interactive:
        from dynamod.cli.chat.start import start

        arguments, make = start(RunArguments("text", "auto", "", flags))
        flags = arguments.flags
    elif flags.model_name:
        raise UserError("--model-name belongs to --interactive", "a server has all models that are found")
    graph = ingress_graph(flags)
    talk = make() if make is not None else None
    return foreground(graph, title="dynamo.frontend", name="", socket=flags.socket, verbose=flags.verbose, talk=talk)
