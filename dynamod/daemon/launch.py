"""What a process of a graph is started with."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from dynamod.actor import Backoff, Spec
from dynamod.graph.graph import Graph
from dynamod.runtime.liveness import Clocks, clocks_of
from dynamod.runtime.paths import worker_socket_path
from dynamod.runtime.plan import HostPlan, ServicePlan

from .gpus import VARIABLE
from .groups import Group
from .process import Adopt, Output, Process, ProcessRecord
from .running import Running
from .spawn import Origin

BACKOFF = Backoff(initial=0.2, factor=2.0, maximum=10.0, reset_after=60.0)
STOP_GRACE = 3.0


class Launcher:
    """Makes the supervisor's specifications of a graph's processes. `graph` says what other components are told.

    `records`: what is known of each process that was started, by the supervisor's name.
    """

    def __init__(
        self,
        name: str,
        graph: Callable[[], Graph],
        *,
        folder: Path,
        adopt: Adopt,
        output: Output,
        changed: Callable[[], None],
        origin: Origin,
    ) -> None:
        self._name, self._graph, self._folder = name, graph, folder
        self._adopt, self._output, self._changed, self._origin = adopt, output, changed, origin
        self.records: dict[str, ProcessRecord] = {}

    def clocks(self, group: Group) -> Clocks:
        """How a process of the group is judged, as the environment of its command says. Raises UserError."""
        return clocks_of([spec.config for spec in group.services], self._origin.environ)

    def spec(self, running: Running, index: int, child: str) -> Spec:
        """How to start replica `index`, under the supervisor's name `child`."""
        environ = self._environ(running, index)
        fds = [running.sock.fileno()] if running.sock is not None else []
        clocks = self.clocks(running.group)

        def factory() -> Process:
            plan = self._plan(running, index, child, environ)  # with what the other components are told by now
            record = self.records[child] = ProcessRecord(plan.name)
            return Process(
                plan,
                record,
                adopt=self._adopt,
                output=self._output,
                changed=self._changed,
                origin=self._origin,
                environ=environ,
                fds=fds,
                grace=STOP_GRACE,
                warm="worker" if running.sock is None else "ingress",
                clocks=clocks,
            )

        return Spec(child, factory, backoff=BACKOFF, shutdown=STOP_GRACE + 1.5)

    def _plan(self, running: Running, index: int, child: str, environ: Mapping[str, str]) -> HostPlan:
        listener, config = running.group.listener(), self._graph().config
        env = {"DYNAMO_SERVICE_CONFIG": msgspec.json.encode(config).decode()}
        if "DYN_LOG" in environ:
            env["DYN_LOG"] = environ["DYN_LOG"]  # a spare process was started before the command's flags were read
        services = []
        for spec in running.group.services:
            sockets = {}
            if running.sock is not None and listener is not None and spec.name == listener[0].name:
                sockets["http"] = 0  # the only descriptor that goes with the plan
            services.append(ServicePlan(spec.name, spec.to_dict(), spec.component_kind, sockets))
        return HostPlan(
            graph=self._name,
            name=f"{self._name}/{running.name(index)}",
            index=index,
            services=tuple(services),
            server=str(worker_socket_path(self._folder, f"{self._name}.{child}")),
            config=config,
            env=env,
        )

    def _environ(self, running: Running, index: int) -> Mapping[str, str]:
        environ = self._origin.environment()
        for spec in running.group.services:
            environ.update(spec.envs)
        if running.group.gpus:
            environ[VARIABLE] = ",".join(running.replicas[index])
        return environ
