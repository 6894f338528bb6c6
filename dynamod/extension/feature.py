"""What a feature adds to the core, by extension point."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .component import Component

if TYPE_CHECKING:
    from .command import CommandHandler  # msgspec would come with it, and a graph's file is imported without


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key at the top of a config file that names no component. `schema`: JSON schema of its value.

    `expand` gives a function of the `graph.document.Document` with the key and of the graph that command or file name
    (a text, a mapping or None). The function returns the document with components instead of the key, and the graph's
    target. It raises UserError.
    """

    schema: Mapping[str, Any]
    expand: Callable[[], Callable[[Any, Any], tuple[Any, str | None]]] | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """One folder of `dynamod/features`, whose `__init__.py` has it as FEATURE.

    `summary`: one line for `dynamo features`. `requires`: names of features without which this one is off, too.

    Extension points are functions, so that a process imports only what it uses. `endpoints` gives objects of
    `ingress.api.endpoint.Endpoint` for the HTTP API. `part` makes what the feature keeps in each HTTP server, of the
    server's `http.settings.FrontendSettings`; endpoints find it in `Frontend.parts`. `commands` gives, by the word
    after `dynamo`, what makes the typer application of that word. An application whose only command has that name adds
    this command.
    """

    name: str
    summary: str
    requires: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    """Names of features that its code imports only where they are on (`installed.require`)."""
    endpoints: Callable[[], Sequence[Any]] = tuple
    part: Callable[[Any], Any] | None = None
    serve: Callable[[Any, Any, Sequence[Any]], None] | None = None
    """Gets `ingress.api.endpoint.Frontend`, `http.server.Server` and the endpoints of each HTTP server that is made.

    Appends to `Server.background` (work alongside requests) and `Server.collectors` (metric families). Adds routes that
    are no part of the API by `Server.add`.
    """
    records: Callable[[Any, Any, Callable[[], tuple[str, str]]], Any] | None = None
    """Makes an `http.records.RecordReader` of each HTTP server; None where the settings want none.

    Gets `Frontend` and `Server` as `serve` does, and what gives the names of the node and of the process. The reader
    gets an `observe.records.RequestRecord` of each request at its end. Without readers no record is made.
    """
    settings: Mapping[str, type[Any]] = field(default_factory=dict[str, type[Any]])
    """By the `SECTION` of a struct of settings in the core: a struct whose fields are keys of that section.

    The keys are valid also when the feature is off. Each field has a default.
    """
    commands: Mapping[str, Callable[[], Any]] = field(default_factory=dict[str, Callable[[], Any]])
    stages: Callable[[Any], Any] | None = None
    """Makes a `migration.stages.Begin` of the `migration.stages.StageContext` of an ingress process."""
    dispatch: Callable[[Any], Any] | None = None
    """Makes an `ingress.dispatch_stage.DispatchStage` of the dispatcher of an ingress process."""
    nvext: type[Any] | None = None
    """A struct whose fields are members of `nvext` in requests of clients, each None by default (`ingress/fields.py`).

    A request with such a member is refused when the feature is off.
    """
    worker: Callable[[], Any] | None = None
    """Gives the class of what the feature keeps in each worker, an extension of `worker.parts.WorkerPart`."""
    daemon: Callable[[], Any] | None = None
    """Gives the class of what the feature keeps in each daemon, an extension of `daemon.parts.DaemonPart`."""
    discovery: Mapping[str, Callable[[], Callable[[Mapping[str, str]], Any]]] = field(default_factory=dict[str, Any])
    """Stores of all nodes, by the word in DYNAMOD_DISCOVERY: gives what makes a `discovery.backend.Backend`.

    It is called with the environment of the daemon. Raises UserError.
    """
    signer: Callable[[], Callable[[Any, Any], Any]] | None = None
    """Gives what makes the `transport.signing.Signer` of a process, of what the daemon's part says to processes.

    It is called with that (`daemon.parts.DaemonPart.to_processes`) and with the signer before, or None. The first
    feature whose part says something signs.
    """
    processor: Callable[[Any], Any] | None = None
    """Makes an `ingress.parts.ProcessorPart` of the `ingress.parts.ProcessorContext` of an ingress process."""
    components: Mapping[str, Component] = field(default_factory=dict[str, Component])
    """Kinds of components, by the name by which services of graphs ask for them."""
    extends: Mapping[str, Callable[[], Any]] = field(default_factory=dict[str, Callable[[], Any]])
    """What it adds to features that it requires or uses, by their names (`installed.extensions`)."""
    inputs: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict[str, Callable[[Any], Any]])
    """Inputs of `dynamo-run` that are no servers, by what stands after `in=`, like `batch:FILE`.

    Each is called with a `cli.flags.RunArguments`. It returns the arguments of the server that the command runs for
    itself, and a function without arguments that makes the `cli.interrupt.Talk` with it. Both raise UserError.
    """
    config_keys: Mapping[str, ConfigKey] = field(default_factory=dict[str, ConfigKey])
    """Keys at the top of a config file. They are read also when the feature is off."""
    run_models: Callable[[Any], Any] | None = None
    """Makes the `graph.graph.Graph` of `dynamo-run` with several models, of a `cli.flags.RunArguments`."""
    explains: Mapping[str, Callable[[], Callable[[str | None, Any], None]]] = field(default_factory=dict[str, Any])
    """What prints `dynamo explain WORD`, by the word: with the path of the control socket or None, and a `Form`."""
    everywhere: Mapping[str, Callable[[], Callable[[str | None, Any], int]]] = field(default_factory=dict[str, Any])
    """What runs `dynamo WORD --all`, by the word, and prints the answers of all nodes.

    Gets the path of the control socket or None, and a `Form`. Returns the exit code, raises UserError.
    """
    controls: "Callable[[], Sequence[CommandHandler[Any, Any]]]" = tuple
    """Gives the commands of the control socket, with what answers them in the daemon."""
    roles: tuple[str, ...] = ()
    """Roles that workers may have in addition to `aggregated`."""
    helpers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of `roles` whose workers answer no clients: the workers that do make use of them.

    Each is the `Instance.pool` of its workers. With the capability (`message.discovery.Capabilities`) of engines whose
    requests cannot be served without such a worker.
    """
    checks: Callable[[Sequence[Any]], None] | None = None
    """Looks at the workers of a graph, `cli.preflight.Checked`, before a process starts. Raises UserError."""
    block_stores: Callable[[], Any] | None = None
    """Gives the `kvcache.store.BlockStores` that make what engines keep KV blocks in, below the device."""
    overlaps: Callable[[], Callable[[Any], Any]] | None = None
    """Gives what makes an `router.overlap.OverlapSource` of the `router.index.BlockIndex` of each router."""
    notes: Mapping[str, Callable[[], Callable[[Any], str]]] = field(default_factory=dict[str, Any])
    """By the name of a note of `router.decision.Decision.notes`: what makes the line of `dynamo explain` from it."""
