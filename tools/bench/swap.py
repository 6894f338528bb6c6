#!/usr/bin/env python3
"""First answers of models on demand: with the model loaded, and with another one that has to leave for it before.

swap.py [--runs 11] [mocker mistralrs llamacpp]. The sample model, one token, one model at a time.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from cold_start import ROOT, free_port

ONE_THREAD = {"llamacpp": {"n_threads": 1, "n_ctx": 2048}}


def ask(port: int, model: str) -> float:
    """Milliseconds of a chat with an answer of one token."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    begin = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        response.read()
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", default=["mocker", "mistralrs"])
    parser.add_argument("--runs", type=int, default=11)
    a = parser.parse_args()
    folder, port = tempfile.mkdtemp(prefix="dm-swap-"), free_port()
    models = {
        name: {"engine": name, "model": "sample.gguf" if name == "llamacpp" else "sample", "args": ONE_THREAD.get(name)}
        for name in a.engines
    }
    config = {"models": {**models, "other": {"engine": "echo_full"}}, "budget": {"models": 1}}
    with open(f"{folder}/models.yaml", "w") as file:
        json.dump(config, file)  # JSON is YAML
    env = {**os.environ, "DYNAMOD_SOCKET": f"{folder}/d.sock", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()", "serve"]
    server = subprocess.Popen(
        [*command, "-f", f"{folder}/models.yaml", f"--Frontend.port={port}"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            try:
                ask(port, "other")
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        for name in a.engines:
            loaded, swapped = [], []
            for _ in range(a.runs):
                ask(port, "other")
                swapped.append(ask(port, name))
                loaded.append(ask(port, name))
            print(f"{name}: loaded {statistics.median(loaded):.1f} ms, swapped {statistics.median(swapped):.0f} ms")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
