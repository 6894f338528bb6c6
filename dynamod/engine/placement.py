"""GPUs and nodes of one engine: checked against what the engine can use; errors name the user's flags or keys."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dynamod.message.errors import UserError

from .names import ENGINES

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Placement:
    """Names are those of the settings. `tensor_parallel_size`: GPUs in all, from `base_gpu_id` on. `node_rank`:
    which of `num_nodes` nodes; rank 0 is at `leader_addr`.
    """

    tensor_parallel_size: int = 1
    base_gpu_id: int = 0
    num_nodes: int = 1
    node_rank: int = 0
    leader_addr: str = ""

    def check(self, engine: str, named: Callable[[str], str], gpus: int = 0) -> None:
        """Raise UserError for what `engine` cannot use, and for values against each other.

        `named(setting)`: the user's name of a setting. `gpus`: number of GPUs that the worker is given, 0: not said.
        """
        entry = ENGINES[engine]
        devices, nodes = entry.devices or entry.file, entry.nodes or entry.file  # a file finds them in its sys.argv
        for setting, default, able, why, hint in (
            ("tensor_parallel_size", 1, devices, "chooses its devices itself", "leave it out"),
            ("base_gpu_id", 0, devices, "chooses its devices itself", "leave it out"),
            ("num_nodes", 1, nodes, "runs on one node", "start a worker on each node"),
            ("node_rank", 0, nodes, "runs on one node", "start a worker on each node"),
        ):
            if not able and (value := getattr(self, setting)) != default:
                raise UserError(f"{named(setting)} {value}: {engine} {why}", hint)
        self._check_nodes(named)
        needed = self.base_gpu_id + self.tensor_parallel_size
        if gpus and self.num_nodes == 1 and needed > gpus and entry.devices:
            what = f"{named('tensor_parallel_size')} {self.tensor_parallel_size}"
            start = f" from {named('base_gpu_id')} {self.base_gpu_id}" if self.base_gpu_id else ""
            raise UserError(f"{what}{start} needs {needed} GPUs, and resources.gpu is {gpus}", "make them agree")

    def _check_nodes(self, named: Callable[[str], str]) -> None:
        if self.node_rank >= self.num_nodes:
            problem = f"{named('node_rank')} {self.node_rank} is not below {named('num_nodes')} {self.num_nodes}"
            raise UserError(problem, "ranks begin at 0, which is the leader")
        address = _ADDRESS.fullmatch(self.leader_addr)
        if self.leader_addr and (address is None or not 0 < int(address[2]) < 65536):
            raise UserError(f"{named('leader_addr')} {self.leader_addr!r} is no address", "write HOST:PORT")
        if self.num_nodes > 1 and not self.leader_addr:
            problem = f"{named('num_nodes')} {self.num_nodes} needs {named('leader_addr')}"
            raise UserError(problem, "HOST:PORT of the node with rank 0, the same on all nodes")
