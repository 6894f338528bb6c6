"""`dynamo infra`: the two servers that several nodes need, started for a developer."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynamod.cli.options import Form, Output, examples

if TYPE_CHECKING:
    from .brokers import Server

app = typer.Typer(
    help="Start and stop a NATS and an etcd server for trying several nodes.",
    short_help="Start and stop a NATS and an etcd server for trying nodes",
    epilog=examples("dynamo infra up", "dynamo infra status", "dynamo infra down --purge"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.info.rich_help_panel = "Set up and try"  # as an argument typer 0.29 loses it

Data = Annotated[Path | None, typer.Option(help="their data and logs (default: ~/.local/state/dynamod/infra)")]


@app.command(
    epilog=examples(
        "dynamo infra up",
        "dynamo infra up --data ./infra --nats-port 14222 --etcd-port 12379",
        "dynamo infra up --secure --host 10.0.0.1",
    ),
)
def up(
    data: Data = None,
    host: Annotated[str, typer.Option(help="address; beyond this machine both need passwords")] = "127.0.0.1",
    nats_port: Annotated[int, typer.Option(min=1, max=65535)] = 4222,
    etcd_port: Annotated[int, typer.Option(min=1, max=65535)] = 2379,
    wait: Annotated[float, typer.Option(min=0.1, help="seconds until both must be healthy")] = 20.0,
    secure: Annotated[bool, typer.Option("--secure", help="TLS, and only nodes with a certificate come in")] = False,
    output: Output = Form.TEXT,
) -> None:
    """Start nats-server (with JetStream) and etcd, and wait until they are healthy.

    With --secure both speak TLS only. A private authority is made in the data folder, once, with certificates of the
    servers and of this node. Other nodes get theirs by `dynamo infra certificate`.
    """
    from . import brokers

    say = (lambda _line: None) if output is Form.JSON else partial(print, flush=True)
    folder = data or brokers.data_folder()
    before = {server.pid for server in brokers.running(folder)}
    servers = brokers.up(folder, host=host, nats_port=nats_port, etcd_port=etcd_port, wait=wait, secure=secure, say=say)
    if output == Form.JSON:
        _print_json(servers)
        return
    for server in servers:
        state = "ran already" if server.pid in before else "is healthy"
        print(f"{server.name} {state}: {server.url}")
    for line in brokers.warnings(servers):
        print(f"warning: {line}")
    if secure:
        file = servers[0].certificates.environment_file
        print(f"Daemons on this machine need these variables. They are in a file: set -a; . {file}; set +a")
    else:
        print("Daemons on this machine find them at their usual ports. Elsewhere, or at other ports, name them:")
    for name, value in brokers.environment(servers).items():
        print(f"  export {name}={value}")
    if secure:
        print("For each other machine: dynamo infra certificate NODE --address ADDRESS")


@app.command(
    epilog=examples(
        "dynamo infra certificate two --address 10.0.0.2",
        "dynamo infra certificate two --address 10.0.0.2 --output ./two --at /etc/dynamod/tls",
    )
)
def certificate(
    name: Annotated[str, typer.Argument(metavar="NODE", help="name of the other machine")],
    address: Annotated[list[str], typer.Option(help="address or name at which other nodes reach it; several times")],
    at: Annotated[Path, typer.Option(help="folder of the files on that machine")] = Path("/etc/dynamod/tls"),
    into: Annotated[Path | None, typer.Option("--output", help="folder to write to (default: ./NODE)")] = None,
    data: Data = None,
) -> None:
    """Make the certificate of a node on another machine, with the authority of `up --secure`."""
    from . import brokers
    from .secure import Secure

    secure = Secure((data or brokers.data_folder()).absolute())
    folder = secure.node(name, address, into or Path(name), at)
    print(f"made {folder}: copy it to {name} as {at}, readable by the daemon only, then start the daemon with")
    print(f"  set -a; . {at}/node.env; set +a")


@app.command(epilog=examples("dynamo infra revoke two/node.pem"))
def revoke(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="certificates that are no longer taken")],
    data: Data = None,
) -> None:
    """Put certificates of the authority of `up --secure` on the list of revoked ones.

    etcd here reads the list at each connection, workers at the next connection after their node has the file.
    """
    from . import brokers
    from .secure import Secure

    path = Secure((data or brokers.data_folder()).absolute()).revoke(files)
    print(f"wrote {path}: copy it to all nodes, to the file that DYNAMOD_TCP_TLS_CRL names there.")
    print("Connections that are there stay until they end. NATS reads no list: see the page TLS between nodes.")


@app.command(epilog=examples("dynamo infra down", "dynamo infra down --purge"))
def down(
    data: Data = None, purge: Annotated[bool, typer.Option("--purge", help="remove their data and logs too")] = False
) -> None:
    """End the servers that `up` started."""
    from . import brokers

    ended = brokers.down(data or brokers.data_folder(), purge=purge)
    print("\n".join(f"{server.name} ended" for server in ended) or "nothing ran")


@app.command(epilog=examples("dynamo infra status", "dynamo infra status --output json"))
def status(data: Data = None, output: Output = Form.TEXT) -> None:
    """Show the servers that `up` started. Exit code 1 unless both are healthy."""
    from . import brokers

    servers = brokers.running(data or brokers.data_folder())
    health = [server.healthy for server in servers]
    if output == Form.JSON:
        _print_json(servers)
    else:
        for server, well in zip(servers, health, strict=True):
            print(f"{server.name} {'is healthy' if well else 'does not answer'}: {server.url} (process {server.pid})")
        if not servers:
            print("nothing runs")
    if len(servers) < 2 or not all(health):
        raise typer.Exit(1)


def _print_json(servers: "Sequence[Server]") -> None:
    from . import brokers

    print(json.dumps({"servers": [asdict(one) for one in servers], "environment": brokers.environment(servers)}))
