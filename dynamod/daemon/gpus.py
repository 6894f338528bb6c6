"""Which accelerator belongs to which replica: given once, kept over restarts, given back when the replica goes."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamod.message.errors import UserError

VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU, named by its address on the bus."""
_DEVICE = re.compile(r"-?\d+|(GPU|MIG)-[\w/-]+")


def devices(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The devices this daemon may hand out: those it may see itself, else all the driver shows. Raises UserError."""
    for name in ("DYNAMOD_GPUS", VARIABLE):
        text = environ.get(name)
        if text is not None:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            if name != VARIABLE and not all(map(_DEVICE.fullmatch, parts)):
                raise UserError(f"{name} is {text!r}", "give numbers or UUIDs of devices, like 0,1; empty for none")
            return [part for part in parts if part != "-1"]
    return [str(number) for number in range(len(list(DRIVER.iterdir())))] if DRIVER.is_dir() else []


def models(folder: Path = DRIVER) -> dict[str, str]:
    """The GPUs that NVIDIA's driver shows: address on the bus to model. The order is not that of CUDA's numbers."""
    found: dict[str, str] = {}
    for gpu in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            lines = (gpu / "information").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        found[gpu.name] = fields.get("Model", "unknown").strip()
    return found


class Gpus:
    """The node's devices and their owners."""

    def __init__(self, all_devices: Sequence[str]) -> None:
        self._all = list(all_devices)
        self._owners: dict[str, list[str]] = {}

    def take(self, owner: str, count: int) -> list[str]:
        """Devices for a replica; the same ones each time it asks. Raises UserError when too few are free."""
        if not count:
            return []
        held = self._owners.get(owner)
        if held is not None and len(held) == count:
            return held
        self.give_back(owner)
        free = self._free()
        if len(free) < count:
            raise UserError(
                f"{owner} asks for {count} GPU{'s' if count != 1 else ''}, {len(free)} of {len(self._all)} are free",
                "lower ServiceArgs.resources.gpu or workers, or set DYNAMOD_GPUS to the devices to use",
            )
        self._owners[owner] = free[:count]
        return self._owners[owner]

    def free(self) -> int:
        """The number of free devices."""
        return len(self._free())

    def _free(self) -> list[str]:
        taken = {device for devices in self._owners.values() for device in devices}
        return [device for device in self._all if device not in taken]

    def give_back(self, owner: str) -> None:
        """The replica is gone for good."""
        self._owners.pop(owner, None)

    def restore(self, table: Mapping[str, Sequence[str]]) -> None:
        """Undo all since `table()` gave this."""
        self._owners = {owner: list(devices) for owner, devices in table.items()}

    def table(self) -> dict[str, list[str]]:
        """The devices of each owner."""
        return {owner: list(devices) for owner, devices in sorted(self._owners.items())}
