"""The RUN steps of the Containerfile, in folders that debootstrap makes: what an image builder does, without layers."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

from .control_plane import FOLDER
from .test_image import FILE

pytestmark = pytest.mark.heavy
ROOT = FILE.parents[1]
RELEASE = "bookworm"
"""Its python is 3.11, which stands for that of the base image; `run_real.sh` has the same words."""
PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Stage:
    """A stage of the file. `steps`: its instructions, each the word and the rest."""

    def __init__(self, steps: list[tuple[str, str]]) -> None:
        self.steps = steps

    def all(self, word: str) -> list[str]:
        return [rest for one, rest in self.steps if one == word]

    def last(self, word: str) -> str:
        return self.all(word)[-1]


def stages() -> list[Stage]:
    """Of the Containerfile; comments are dropped and lines that go on are joined."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    found = list[Stage]()
    for word, rest in lines:
        if word == "FROM":
            found.append(Stage([]))
        elif found:
            found[-1].steps.append((word, rest))
    return found


class Folder:
    """A root file system; commands see it with /proc and /dev, which end with the command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def words(self, *words: str, user: str = "") -> list[str]:
        mounts = f"mount -t proc proc {self.path}/proc && mount --bind /dev {self.path}/dev"
        place = ["chroot", *([f"--userspec={user}:{user}"] if user else []), str(self.path)]
        return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *place, *words]

    def run(self, step: str, seconds: float = 420, **env: str) -> None:
        """As a RUN step with the shell of the file. The settings of pip are those of this machine."""
        own = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_", "HTTP", "http"))}
        done = subprocess.run(
            self.words("/bin/bash", "-o", "pipefail", "-c", step),
            env={**own, "PATH": PATH, "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **env},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    def copy(self, to: Path) -> "Folder":
        subprocess.run(["cp", "-a", str(self.path), str(to)], check=True, timeout=120)
        return Folder(to)


@pytest.fixture
def base() -> Iterator[Folder]:
    """What stands for the image in FROM: the folder `debian` that `run_real.sh` keeps, else one made now."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "unshare", "chroot"))):
        pytest.skip("needs root and the program debootstrap (Debian: apt-get install debootstrap)")
    where = Path(tempfile.mkdtemp(prefix="di", dir="/var/tmp"))  # /tmp may be a file system without devices
    try:
        kept = Path(os.environ.get(FOLDER, "")).parent / "debian"
        if (kept / "usr/bin/python3").exists():
            made = Folder(kept).copy(where / "base")
        else:
            made = Folder(where / "base")
            words = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(made.path)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode:
                pytest.skip(f"debootstrap cannot make a folder here: {done.stdout.splitlines()[-1:]}")
        shutil.copy("/etc/resolv.conf", made.path / "etc/resolv.conf")
        if CERTIFICATES.exists():
            shutil.copy(CERTIFICATES, made.path / CERTIFICATES.relative_to("/"))
        yield made
    finally:
        shutil.rmtree(where, ignore_errors=True)


def copied(folder: Path) -> None:
    """The context of the build: what git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def test_the_steps_of_the_image_make_one_that_serves_as_its_user(base: Folder) -> None:
    first, second = stages()
    build = base.copy(base.path.with_name("build"))
    assert first.all("COPY") == [". /source"]
    copied(build.path / "source")
    for step in first.all("RUN"):
        build.run(step, EXTRAS="")
    assert (build.path / "usr/bin/gcc").exists()

    final = base.copy(base.path.with_name("final"))
    for step in second.all("RUN"):
        final.run(step)
    (given,) = second.all("COPY")
    assert given == "--from=build /opt/dynamod /opt/dynamod"
    subprocess.run(["cp", "-a", str(build.path / "opt/dynamod"), str(final.path / "opt")], check=True, timeout=120)
    assert not (final.path / "usr/bin/gcc").exists(), "the image has no compiler"
    user = second.last("USER")
    assert re.search(rf"^dynamod:x:{user}:", (final.path / "etc/passwd").read_text(), re.MULTILINE)

    port = free_port()
    command = [str(word) for word in json.loads(second.last("CMD"))]
    command = [f"--http-port={port}" if word.startswith("--http-port") else word for word in command]
    variables = dict(word.split("=", 1) for word in shlex.split(second.last("ENV")))
    home = second.last("WORKDIR")
    env = {"HOME": home, **variables, "PATH": f"/opt/dynamod/bin:{PATH}", "DYNAMOD_CLUSTER": "off"}
    words = final.words("/bin/sh", "-c", f'cd {home} && exec "$@"', "sh", *command, user=user)
    with (base.path.with_name("log")).open("wb") as log:
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log)
    try:
        _answers(port, process)
    except AssertionError as error:
        raise AssertionError(base.path.with_name("log").read_text()[-3000:]) from error
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the model."""
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                if b'"sample"' in answer.read():
                    return
        except OSError:
            pass
        assert process.poll() is None, "the command has ended"
        assert time.monotonic() < end, "no model within a minute"
        time.sleep(0.2)
