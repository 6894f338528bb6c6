#!/usr/bin/env python3
"""Seconds from `git clone` to the first answer, as the README's first lines: clone, `uv run`, one request.

first_use.py [--runs 3]. The package cache is as it is: the first run fills it and is printed apart. Needs git and uv.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

from cold_start import ROOT, ask, free_port

COMMAND = "uv run --extra mistralrs dynamo serve graphs.agg:Frontend -f configs/agg.yaml"
LIMIT = 900.0
"""Seconds for a run whose packages have to be downloaded."""


def one() -> tuple[float, float, float]:
    """Clone, serve, ask, stop; returns seconds until the clone, the environment and the answer are there."""
    folder, port = tempfile.mkdtemp(prefix="dm-first-"), free_port()
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    env["DYNAMOD_SOCKET"] = f"{folder}/d.sock"
    begin = time.perf_counter()
    subprocess.run(["git", "clone", "--quiet", ROOT, f"{folder}/dynamod"], check=True)
    cloned = time.perf_counter() - begin
    argv = [*COMMAND.split(), f"--Frontend.port={port}"]
    with open(f"{folder}/log", "wb") as log:
        server = subprocess.Popen(argv, cwd=f"{folder}/dynamod", env=env, stdout=log, stderr=log)
    installed = 0.0
    try:
        while not ask(port, "sample"):
            if not installed and os.path.exists(env["DYNAMOD_SOCKET"]):  # the command itself runs
                installed = time.perf_counter() - begin
            if server.poll() is not None or time.perf_counter() - begin > LIMIT:
                with open(f"{folder}/log") as log_text:
                    raise SystemExit(f"the server did not start:\n{log_text.read()}")
            time.sleep(0.005)
        return cloned, installed, time.perf_counter() - begin
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    a = parser.parse_args()
    print(f"fills the cache: {one()[2]:.1f} s")
    runs = [one() for _ in range(a.runs)]
    for name, values in zip(("clone", "environment", "first answer"), zip(*runs, strict=True), strict=True):
        print(f"{name}: min={min(values):.1f} median={statistics.median(values):.1f} max={max(values):.1f} s")


if __name__ == "__main__":
    main()
