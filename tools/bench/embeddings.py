#!/usr/bin/env python3
"""Embeddings per second of a server, and the CPU time that an input costs its processes.

embeddings.py [--url http://127.0.0.1:8080] [--inputs 2048] [--batch 64] [--words 50] [--clients 4] [--pids 1,2]

Without --url a server with two mockers that take no time is started and ended. CPU time is that of `--pids`, and of the
processes of the server that was started: ingress and workers.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[2]))

START = 30.0
"""Seconds until the server answers."""


def cpu(pids: list[int]) -> float:
    """Seconds of CPU time that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def ask(session: aiohttp.ClientSession, url: str, body: Any) -> int:
    async with session.post(f"{url}/v1/embeddings", json=body) as answer:
        text = await answer.read()
        assert answer.status == 200, text
        return len(json.loads(text)["data"])


async def until_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(START):
        while True:
            try:
                async with session.get(f"{url}/v1/models") as answer:
                    if "embeddings" in await answer.text():
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def measure(url: str, given: argparse.Namespace, find: Any) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        await until_ready(session, url)
        pids = find()
        for form in ("base64", "float"):
            texts = [f"{number} " + "word " * given.words for number in range(given.inputs)]
            bodies = [
                {"input": texts[at : at + given.batch], "encoding_format": form}
                for at in range(0, len(texts), given.batch)
            ]
            await ask(session, url, bodies[0])
            places = asyncio.Semaphore(given.clients)

            async def one(body: Any, places: asyncio.Semaphore = places) -> int:
                async with places:
                    return await ask(session, url, body)

            before, begun = [cpu([pid]) for pid in pids], time.perf_counter()
            done = sum(await asyncio.gather(*map(one, bodies)))
            seconds = time.perf_counter() - begun
            used = [1e6 * (cpu([pid]) - old) / done for pid, old in zip(pids, before, strict=True)]
            shown = ", ".join(f"{name} {value:.0f}" for name, value in zip(pids.values(), used, strict=True))
            print(f"{form:<7} {done / seconds:8.0f} embeddings/s, CPU us per input: {shown or 'not measured'}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--url", default="")
    arguments.add_argument("--port", type=int, default=18080)
    arguments.add_argument("--inputs", type=int, default=2048)
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--words", type=int, default=50)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--pids", default="")
    given = arguments.parse_args()
    if given.url:
        pids = {int(pid): pid for pid in given.pids.split(",") if pid}
        asyncio.run(measure(given.url, given, lambda: pids))
        return
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "DYNAMOD_SOCKET": f"{folder}/s"}
        argv = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()"]
        words = ["serve", "-f", "configs/agg.yaml", "--Worker.engine=mocker", "--Common.model=sample"]
        words += ['--Worker.engine_args={"speedup_ratio": 0}', "--Worker.ServiceArgs.workers=2"]
        server = subprocess.Popen([*argv, *words, f"--Frontend.port={given.port}"], env=env, stderr=subprocess.DEVNULL)

        def rows() -> dict[int, str]:
            shown = subprocess.run([*argv, "ps", "--output", "json"], env=env, capture_output=True, check=True)
            found = json.loads(shown.stdout)
            return {row["pid"]: row["process"] for row in found if row["process"]}

        try:
            asyncio.run(measure(f"http://127.0.0.1:{given.port}", given, rows))
        finally:
            server.terminate()
            server.wait(20)


if __name__ == "__main__":
    main()
