#!/usr/bin/env python3
"""What a hand-off costs a request: short prompts, and one token of answer.

handoff_cost.py [--ways none worker pull rendezvous] [--engine mocker|llamacpp] [--tokens 24] [--requests 300]
                [--repeat 3]

The same graph with no prompt at the prefill worker (`none`) and with all of them, in turn, one request at a time.
Workers move the blocks, or mockers do so themselves as vLLM (`pull`) and SGLang (`rendezvous`). Mockers take no time;
llama.cpp (`none`, `worker`) serves the sample model. Milliseconds until the answer, and CPU time of all processes per
request, which other load of the machine changes little.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from disagg import ask
from llama_servers import ROOT, Server
from load import cpu_seconds


def prompt(length: int) -> list[int]:
    """So many tokens, unlike others'. Of 24 one block of 16 is handed off; the answering worker computes the rest."""
    return random.choices(range(300, 900), k=length)


def serving(engine: str, way: str) -> Server:
    """The graph, with one prefill and one decode worker."""
    mocker = {"speedup_ratio": 0, "block_size": 16, "kv_transfer": "worker" if way == "none" else way}
    given = json.dumps(mocker if engine == "mocker" else {"n_threads": 1})

    def command(port: int, _folder: Path) -> Sequence[str]:
        workers = [f"--{name}.engine_args={given}" for name in ("Worker", "PrefillWorker")]
        model = ["--Common.model=sample.gguf"] if engine == "llamacpp" else []
        common = [f"--Common.engine={engine}", "--Common.served_model_name=m", f"--Frontend.port={port}"]
        choice = ["--Processor.remote-prefill=false" if way == "none" else "--Processor.conditional-disagg=false"]
        if way == "rendezvous":
            choice.append("--Worker.disaggregation_mode=decode")
        start = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()", "serve"]
        return [*start, "-f", f"{ROOT}/configs/disagg.yaml", *common, *model, *workers, *choice]

    return Server(f"{engine}, {way}", command, 1)


def cpu(server: Server) -> float:
    """Seconds that the processes of the graph have used."""
    env = {**os.environ, "DYNAMOD_SOCKET": str(server.folder / "d.sock")}
    words = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()", "ps", "--output", "json"]
    rows = json.loads(subprocess.run(words, env=env, capture_output=True, check=True).stdout)
    return sum(cpu_seconds(pid) for pid in {row["pid"] for row in rows})


async def measured(server: Server, requests: int, tokens: int) -> tuple[float, float]:
    """Median milliseconds of an answer, and CPU milliseconds per request."""
    for _ in range(20):
        await ask(server.port, prompt(tokens), 1)
    before, took = cpu(server), []
    for _ in range(requests):
        began = time.perf_counter()
        await ask(server.port, prompt(tokens), 1)
        took.append(time.perf_counter() - began)
    return median(took) * 1000, (cpu(server) - before) / requests * 1000


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ways", nargs="*", choices=("none", "worker", "pull", "rendezvous"), default=["none", "worker"]
    )
    parser.add_argument("--engine", choices=("mocker", "llamacpp"), default="mocker")
    parser.add_argument("--tokens", type=int, default=24, help="of a prompt")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    a = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    servers = [serving(a.engine, way) for way in a.ways]
    try:
        for server in servers:
            server.model()
        for _ in range(a.repeat):
            for server in servers:
                answer, used = asyncio.run(measured(server, a.requests, a.tokens))
                print(f"{server.name}: answer {answer:.2f} ms, CPU {used:.2f} ms per request", flush=True)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
