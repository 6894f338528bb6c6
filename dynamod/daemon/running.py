"""A process group that runs: its sockets, its replicas, what their processes are called and started with."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from dynamod.actor import Backoff, Spec
from dynamod.message.discovery import DisaggregationMode
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.shares import forget, shared_memory
from dynamod.message.tls import TlsFiles
from dynamod.runtime.components import starts_workers
from dynamod.runtime.liveness import Clocks, clocks_of
from dynamod.runtime.paths import worker_socket_path
from dynamod.runtime.plan import HostPlan, ServicePlan, http_sockets

from .gpus import VARIABLE
from .groups import Group
from .process import STOP_GRACE, Launch, Process, ProcessRecord
from .sockets import Sockets, tls_files

if TYPE_CHECKING:
    from .runner import GraphRunner

SWITCH = 60.0
"""Seconds that a change of a role may take beyond what open requests get to finish."""
BACKOFF = Backoff(initial=0.2, factor=2.0, maximum=10.0, reset_after=60.0)


@dataclass(slots=True, eq=False)
class Running:
    """`replicas`: index -> devices. `lock`: one change at a time.

    Users call a process `Frontend.0`. While a successor starts and its predecessor still has streams there are two of
    them, which the supervisor must know apart: `children` has the name of the process that is the replica (when it is
    another one), `others` the processes on their way in or out, with the replica they belong to.
    `roles`: of the workers of a replica that have changed theirs, also when its process is started again.
    `leaving`: replicas that end for good. `memory`: in which its processes count their clients, see `message.shares`.
    """

    runner: "GraphRunner"
    group: Group
    sockets: Sockets
    replicas: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    children: dict[int, str] = field(default_factory=dict[int, str])
    roles: dict[int, dict[str, DisaggregationMode]] = field(default_factory=dict[int, dict[str, DisaggregationMode]])
    others: dict[str, int] = field(default_factory=dict[str, int])
    leaving: set[int] = field(default_factory=set[int])
    memory: int | None = None

    def name(self, index: int) -> str:
        """What users call a replica: `Worker.0`."""
        return f"{self.group.name}.{index}"

    def full_name(self, index: int) -> str:
        """The same with the name of the graph: `agg/Worker.0`."""
        return f"{self.runner.name}/{self.name(index)}"

    def child(self, index: int) -> str:
        """The supervisor's name of the process that is a replica."""
        return self.children.get(index, self.name(index))

    def indexes(self, component: str) -> list[int]:
        """The replicas that `Worker` or `Worker.1` means."""
        number = component.rpartition("/")[2].partition(".")[2]
        return [index for index in sorted(self.replicas) if number in ("", str(index))]

    def names(self) -> list[str]:
        """The supervisor's names of all its processes."""
        return [*(self.child(index) for index in self.replicas), *self.others]

    @property
    def tls(self) -> TlsFiles | None:
        """The files with which it serves HTTPS; None: HTTP."""
        return tls_files(service.config for service in self.group.services)

    @property
    def overlaps(self) -> bool:
        """Whether a successor can start while its predecessor still serves: both hold the sockets, neither a device."""
        return bool(self.sockets) and not self.group.gpus

    def check(self, replicas: int) -> None:
        """Raises UserError where there cannot be so many."""
        if not 0 <= replicas <= 256:
            raise UserError(f"{replicas} replicas are out of range", "choose a number from 0 to 256")
        if replicas > 1 and any(starts_workers(spec.component_kind) for spec in self.group.services):
            raise UserError(f"{self.group.name} has one process", "it decides which models are loaded: choose 0 or 1")

    def take(self, index: int) -> None:
        """Reserve devices for a new replica. Raises UserError when too few are free."""
        self.replicas[index] = self.runner.node.gpus.take(self.full_name(index), self.group.gpus)

    def give_back(self, index: int) -> None:
        """A replica is gone for good."""
        self.replicas.pop(index, None)
        self.roles.pop(index, None)
        if self.memory is not None:
            forget(self.memory, index)
        self.runner.node.gpus.give_back(self.full_name(index))

    def leave_sockets(self) -> None:
        """Its processes have ended, or others have the sockets now."""
        self.sockets = ()
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None

    async def switch(self, index: int, role: DisaggregationMode, timeout: float, epoch: int | None) -> None:
        """Have the worker of a replica change its role. Raises UserError."""
        name, record = self.full_name(index), self.runner.supervised.records.get(self.child(index))
        workers = record.facts().roles if record is not None else {}
        if record is None or not workers:
            raise UserError(f"{name} has no role that could change", "name a worker that is Ready, see dynamo ps")
        arguments = {"role": role, "timeout": timeout, "expected_epoch": epoch}
        try:
            await record.ask("switch", arguments, timeout=timeout + SWITCH)
        except UserError as error:
            raise UserError(f"{name}: {error}", error.hint) from None
        except (TimeoutError, DynamodError) as error:
            raise UserError(f"{name} has not become {role}: {error or 'no answer'}", "see dynamo logs") from None
        self.roles[index] = dict.fromkeys(workers, role)

    def clocks(self) -> Clocks:
        """How a process of the group is judged, as the environment of its command says. Raises UserError."""
        return clocks_of([spec.config for spec in self.group.services], self.runner.origin.environ)

    def spec(self, index: int, child: str) -> Spec:
        """How to start replica `index`, under the supervisor's name `child`."""
        runner, environ, clocks = self.runner, self._environment(index), self.clocks()
        origin = replace(runner.origin, python=self.group.python or runner.origin.python)
        if self.sockets and self.memory is None:
            self.memory = shared_memory()
        memory = () if self.memory is None else (self.memory,)
        fds = [*(sock.fileno() for sock in self.sockets), *memory]
        warm = "ingress" if self.sockets else "worker"

        def factory() -> Process:
            plan = self._plan(index, child, environ)  # with the settings that the other components have by now
            record = runner.supervised.records[child] = ProcessRecord(plan.name)
            record.grace = plan.grace
            launch = Launch(plan, origin, environ, fds, warm, clocks, command=runner.origin.python)
            return Process(runner.node, launch, record)

        return Spec(child, factory, backoff=BACKOFF, shutdown=STOP_GRACE + 1.5)

    def _plan(self, index: int, child: str, environ: Mapping[str, str]) -> HostPlan:
        runner, listener, config = self.runner, self.group.listener(), self.runner.graph.config
        env = {"DYNAMO_SERVICE_CONFIG": msgspec.json.encode(config).decode()}
        if "DYN_LOG" in environ:
            env["DYN_LOG"] = environ["DYN_LOG"]  # a spare process was started before the command's flags were read
        services = []
        for spec in self.group.services:
            listens = listener is not None and spec.name == listener[0].name
            # no other descriptors go with the plan
            sockets = http_sockets(len(self.sockets), shares=self.memory is not None) if listens else {}
            role = self.roles.get(index, {}).get(spec.name)
            services.append(ServicePlan(spec.name, spec.to_dict(), spec.component_kind, sockets, role))
        return HostPlan(
            graph=runner.name,
            name=self.full_name(index),
            index=index,
            services=tuple(services),
            server=str(worker_socket_path(runner.node.place.folder.path, f"{runner.name}.{child}")),
            config=config,
            env=env,
            grace=runner.grace if self.sockets else 0.0,
            control=str(runner.node.place.socket),
        )

    def _environment(self, index: int) -> Mapping[str, str]:
        environ = self.runner.origin.environment()
        for spec in self.group.services:
            environ.update(spec.envs)
        if folder := os.path.dirname(self.group.python):  # engines start compilers and other programs from there
            environ["PATH"] = os.pathsep.join([folder, *filter(None, [environ.get("PATH")])])
        if self.group.gpus:
            environ[VARIABLE] = ",".join(self.replicas[index])
        return environ
