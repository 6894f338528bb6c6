#!/usr/bin/env python3
"""Seconds from starting `dynamo serve` to its first complete answer.

cold_start.py [--runs 5] [--engine echo_core] [--model sample]
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def ask(port: int, model: str, key: str = "") -> bool:
    """One unary request, with a key if one is given; False while nobody answers it."""
    body = json.dumps(
        {"model": model, "max_tokens": 1, "ignore_eos": True, "messages": [{"role": "user", "content": "Hello"}]}
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(head.encode() + body)
            return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def one(engine: str, model: str) -> float:
    """Start, wait for an answer, stop; returns seconds."""
    folder, port = tempfile.mkdtemp(), free_port()
    env = {**os.environ, "DYNAMOD_SOCKET": f"{folder}/d.sock", "DYN_TOKEN_ECHO_DELAY_MS": "0"}
    env["PYTHONPATH"] = os.pathsep.join([ROOT, env.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()", "serve", "-f", "configs/agg.yaml"]
    where = os.path.abspath(model) if os.path.exists(model) else model
    command += [f"--Worker.engine={engine}", f"--Worker.model={where}"]
    command += ["--Worker.served-model-name=bench", f"--Frontend.port={port}"]
    begin = time.perf_counter()
    server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ask(port, "bench"):
            if server.poll() is not None or time.perf_counter() - begin > 60:
                raise SystemExit("the server did not start")
            time.sleep(0.005)
        return time.perf_counter() - begin
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--engine", default="echo_core")
    parser.add_argument("--model", default="sample")
    a = parser.parse_args()
    one(a.engine, a.model)  # fills the bytecode caches
    seconds = [one(a.engine, a.model) for _ in range(a.runs)]
    print(
        f"engine={a.engine} runs={a.runs} seconds min={min(seconds):.2f} median={statistics.median(seconds):.2f} "
        f"max={max(seconds):.2f}"
    )


if __name__ == "__main__":
    main()
