"""Processes of this machine, as /proc has them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pid:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    born: str

    @classmethod
    def of(cls, pid: int) -> "Pid | None":
        fields = _stat(pid)
        return cls(pid, fields[19]) if fields and fields[0] not in "ZX" else None

    @property
    def lives(self) -> bool:
        return Pid.of(self.pid) == self


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def tree(pid: int) -> set[Pid]:
    """A process and all below it, but a nursery (nursery.py): only what that has forked."""
    found = {one for one in [Pid.of(pid)] if one is not None and not _comm(pid).endswith("~")}
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found |= tree(int(child))
    return found


def described(pid: int) -> str:
    """What a process is, and where its threads are in the kernel: D stands for a wait on a disk."""
    fields = _stat(pid)
    places = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            places.append(f"{state} {(task / 'wchan').read_text()}")
        except OSError:
            continue
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(bytes(1), b" ").decode()[:120]
    except OSError:
        words = ""
    return f"{pid} {fields[0] if fields else 'gone'} {words} [{', '.join(sorted(places))}]"


def named_after(folder: str) -> list[str]:
    """Processes whose environment has a path in this folder, or whose name is the folder's; with their commands.

    A process that has ended counts no longer: where its parent ended first, init may take seconds to forget it.
    """
    name, inside = Path(folder).name, f"{folder}/".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "comm").read_text().rstrip("~\n") != name and inside not in (place / "environ").read_bytes():
                continue
            if Pid.of(int(place.name)) is not None:
                found.append(f"{place.name}: {(place / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:
            pass  # it has ended, or is another user's
    return found
