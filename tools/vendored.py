"""Compares the libraries of the console with the npm registry: `python -m tools.vendored`.

The registry is the one of npm's configuration. `vendored.json` has versions and digests: of the packages as the
registry says them, of the files as they are in the repository.
"""

import base64
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha512
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "dynamod/features/console"
SECONDS = 120.0
"""For one answer of npm."""


def listed() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """What `vendored.json` says: `libraries` of the console, and packages of its `tests`."""
    found: Mapping[str, Any] = json.loads((FOLDER / "vendored.json").read_bytes())
    return {name: found[name] for name in ("libraries", "tests")}


def digest(data: bytes) -> str:
    """As npm writes it."""
    return "sha512-" + base64.b64encode(sha512(data).digest()).decode()


def wrong_files() -> Iterator[str]:
    """A line for each file of the repository that differs from the list, is missing, or is not in the list."""
    vendor = FOLDER / "static/vendor"
    files = {one["file"]: one["integrity"] for library in listed()["libraries"] for one in library["files"]}
    there = {path.name for path in vendor.iterdir()}
    yield from (f"{name} is not in vendored.json" for name in sorted(there - files.keys()))
    for name, integrity in files.items():
        if name not in there:
            yield f"{name} is missing"
        elif digest((vendor / name).read_bytes()) != integrity:
            yield f"{name} is not as vendored.json says"


def package(library: Mapping[str, Any]) -> bytes:
    """The package as the registry has it. Raises ValueError when it is another one than the list says."""
    name = f"{library['name']}@{library['version']}"
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, name]
        subprocess.run(command, check=True, timeout=SECONDS, capture_output=True, cwd=folder)
        data = next(Path(folder).glob("*.tgz")).read_bytes()
    if digest(data) != library["integrity"]:
        raise ValueError(f"{name}: the registry has another package than vendored.json")
    return data


def member(data: bytes, path: str) -> bytes:
    """A file of a package. Raises KeyError when there is none."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = archive.extractfile(path)
        if found is None:
            raise KeyError(path)
        return found.read()


def main() -> int:
    """Check everything. Returns the exit code."""
    wrong = list(wrong_files())
    for library in [*listed()["libraries"], *listed()["tests"]]:
        name = f"{library['name']} {library['version']}"
        try:
            data = package(library)
            wrong += [
                f"{name}: {one['from']} is not {one['file']}"
                for one in library["files"]
                if digest(member(data, one["from"])) != one["integrity"]
            ]
            print(f"{name}: compared with the registry")
        except (ValueError, KeyError, subprocess.SubprocessError, OSError) as error:
            wrong.append(f"{name}: {error}")
    print("\n".join(wrong) or "all as vendored.json says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
