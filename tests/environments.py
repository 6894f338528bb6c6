"""A second Python environment: the same interpreter, and packages from folders that are named."""

import site
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(folder: Path, paths: Sequence[str] | None = None) -> Path:
    """Make one whose packages are in `paths`: by default those of this environment, and this tree. Its python."""
    venv.create(folder, symlinks=True)
    if paths is None:
        paths = [str(ROOT), str(ROOT / "dynamod/compat"), *site.getsitepackages()]
    library = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (library / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder / "bin/python"
