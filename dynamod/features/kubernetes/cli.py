"""`dynamo manifest`: a graph or a DynamoGraphDeployment as resources of Kubernetes."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynamod import __version__
from dynamod.cli.options import OPEN, ConfigFile, Target, examples, target_and_overrides
from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from dynamod.graph.document import Document
    from dynamod.graph.graph import Graph

    from .deployment import Deployment

CRDS = "deploy/helm/dynamod/crds/dynamodinstances.yaml"
"""The definition of the kind DynamodInstance, in a checkout and in the wheel."""
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "manifest",
    rich_help_panel="Serve",
    context_settings=OPEN,
    epilog=examples(
        "dynamo manifest graphs.disagg:Frontend -f configs/disagg.yaml",
        "dynamo manifest -f dgd.yaml --image registry.example/dynamod:0.2.0 | kubectl apply -f -",
        "dynamo manifest -f configs/agg.yaml --Worker.engine=mocker --secret shared --namespace serving",
        "dynamo manifest -f configs/agg.yaml --discovery etcd --etcd-endpoints etcd:2379 --secret shared",
    ),
)
def manifest(
    context: typer.Context,
    graph: Target = None,
    config_file: ConfigFile = None,
    name: Annotated[str, typer.Option("--name", help="name of the deployment (default: the graph's)")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="namespace that objects name")] = "",
    image: Annotated[str, typer.Option("--image", help="image of dynamod")] = f"dynamod:{__version__}",
    secret: Annotated[str, typer.Option("--secret", help="secret with the key `secret` (default: NAME)")] = "",
    tls_secret: Annotated[
        str, typer.Option("--tls-secret", help="secret with tls.crt, tls.key and ca.crt, for mutual TLS")
    ] = "",
    unsigned: Annotated[bool, typer.Option("--allow-unsigned", help="pods take requests of everyone")] = False,
    cache_claim: Annotated[str, typer.Option("--cache-claim", help="volume claim for downloaded models")] = "",
    drain: Annotated[int, typer.Option("--drain", min=1, max=86400, help="seconds for open answers at the end")] = 60,
    crd: Annotated[
        bool, typer.Option("--crd/--no-crd", help="with the definition of DynamodInstance, which etcd does not need")
    ] = True,
    discovery: Annotated[
        str, typer.Option("--discovery", help="where pods find each other: kubernetes (the API server) or etcd")
    ] = "kubernetes",
    requests: Annotated[str, typer.Option("--requests", help="how requests go from pod to pod: tcp or nats")] = "tcp",
    etcd_endpoints: Annotated[
        str, typer.Option("--etcd-endpoints", help="members of etcd, as in etcd:2379, with commas between them")
    ] = "",
    etcd_auth: Annotated[str, typer.Option("--etcd-auth-secret", help="secret with username and password")] = "",
    etcd_tls: Annotated[str, typer.Option("--etcd-tls-secret", help="secret with ca.crt, tls.crt and tls.key")] = "",
    nats_server: Annotated[
        str, typer.Option("--nats-server", help="servers of NATS, as in nats://nats:4222, with commas between them")
    ] = "",
    nats_auth: Annotated[str, typer.Option("--nats-auth-secret", help="secret with username and password")] = "",
    nats_tls: Annotated[str, typer.Option("--nats-tls-secret", help="secret with ca.crt, tls.crt and tls.key")] = "",
) -> None:
    """Print a graph as Kubernetes resources.

    The graph may be a DynamoGraphDeployment (`-f dgd.yaml`). `kubectl apply -f -` takes the resources.
    """
    from dynamod.graph.importing import shipped_root

    from . import manifest as made
    from .brokers import Broker, chosen
    from .pods import ManifestSettings

    etcd = Broker(address=etcd_endpoints, auth=etcd_auth, tls=etcd_tls)
    nats = Broker(address=nats_server, auth=nats_auth, tls=nats_tls)
    brokers = chosen(discovery, requests, etcd, nats)
    if brokers.nats is not None and tls_secret and not secret:
        raise UserError("--tls-secret is for requests over TCP; requests over NATS are signed", "give --secret, too")
    if unsigned and (secret or tls_secret):
        raise UserError("--allow-unsigned excludes --secret and --tls-secret", "leave one out")
    target, overrides = target_and_overrides(graph, context)
    loaded, deployment = _load(target, config_file, overrides)
    default = deployment.name if deployment is not None else _default(loaded)
    settings = ManifestSettings(
        name=_checked(name or default),
        version=__version__,
        namespace=namespace,
        image=image,
        tls_secret=tls_secret,
        cache_claim=cache_claim,
        drain=drain,
        brokers=brokers,
        secret=secret or ("" if unsigned or tls_secret else _full(name or default)),
    )
    parts = {one.name: one.pod for one in deployment.components} if deployment is not None else {}
    found = made.manifest(loaded, settings, parts)
    for line in [*found.notes, *_local(loaded)]:
        print(f"{loaded.source or loaded.target}: {line}", file=sys.stderr)
    if settings.secret and not secret:
        create = f"kubectl create secret generic {settings.secret} --from-file=secret=cluster.secret"
        print(f"requests are signed with a secret: dynamo trust new cluster.secret; {create}", file=sys.stderr)
    texts = [(shipped_root() / CRDS).read_text()] if crd and brokers.etcd is None else []
    print("---\n".join([*texts, *map(_yaml, found.objects)]), end="")


def _load(target: str | None, config_file: str | None, overrides: list[str]) -> "tuple[Graph, Deployment | None]":
    """The graph, and the DynamoGraphDeployment that it was made of."""
    from dataclasses import replace

    from dynamod.extension.installed import config_keys
    from dynamod.graph.load import load_graph

    from .deployment import RESOURCE
    from .graph import as_graph, deployment_of

    found: list[Deployment] = []

    def expand(document: "Document", wanted: object) -> "tuple[Document, str | None]":
        found.append(deployment_of(document, wanted, pods=True))
        return as_graph(document, found[0]), None

    keys: dict[str, Any] = {
        key: replace(one, expand=lambda: expand) if key in RESOURCE else one for key, one in config_keys().items()
    }
    graph = load_graph(target, config_file, overrides=overrides, keys=keys)
    return graph, found[0] if found else None


def _yaml(value: object) -> str:
    """The text of an object: texts of several lines as they are, and no aliases."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    def lines(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, lines)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=1000)


def _default(graph: "Graph") -> str:
    """The name of a graph: that of its module, or of its file."""
    from .manifest import short

    module, _, _ = graph.target.partition(":")
    return short(Path(module).stem if module.endswith((".py", ".yaml", ".yml")) else module.rpartition(".")[2])


def _full(name: str) -> str:
    from .pods import ManifestSettings

    return ManifestSettings(name=name, version="").full


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(f"--name {name!r} is no name in Kubernetes", "at most 40 letters a-z, digits and '-'")
    return name


def _local(graph: "Graph") -> list[str]:
    """What the graph has of this machine only."""
    import dynamod
    from dynamod.graph.absolute import absolute
    from dynamod.graph.importing import shipped_root

    found = list[str]()
    for name, section in absolute(graph, Path.cwd()).config.items():
        before = graph.config[name]
        for key, value in section.items() if isinstance(section, dict) else ():
            if value != before[key]:
                found.append(f"{name}.{key}: {value} is a file of this machine; the image or a volume needs it")
    ours = (Path(dynamod.__file__).parent, shipped_root() / "graphs")
    for name, spec in graph.services.items():
        if spec.file and not any(Path(spec.file).is_relative_to(one) for one in ours):
            found.append(f"{name}: {spec.file} is a file of this machine; the image needs the module")
    return found
