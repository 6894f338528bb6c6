"""GB/s of block transfer between two processes, by backend and block size.

python -m tools.bench.transfer [--seconds 1.0]
"""

import argparse
import asyncio
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from dynamod.features.infra.authority import Authority
from dynamod.features.prefill.transfer import nixl
from dynamod.features.prefill.transfer.reader import read
from dynamod.features.prefill.transfer.server import BlockServer
from dynamod.features.prefill.transfer.sessions import Sessions
from dynamod.transport.tls import PeerTls

SIZES = {"16 KiB": 16 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}
TOTAL = 512 << 20


def spawn(work: Any, name: str) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def certificates(folder: Path) -> PeerTls:
    """Files of a node, made anew."""
    authority = Authority.make("bench")
    pair = authority.issue("node", ["127.0.0.1"])
    found = PeerTls(folder / "ca.pem", folder / "node.pem", folder / "node.key")
    for path, content in ((found.ca, authority.pair.cert), (found.cert, pair.cert), (found.key, pair.key)):
        path.write_bytes(content)
    return found


async def serve(pipe: Connection, folder: str, tls: PeerTls) -> None:
    """Answer each size with a session that holds TOTAL bytes in blocks of it, and its addresses."""
    sessions = Sessions(time.monotonic, spawn, "bench", most_bytes=2 * TOTAL)
    server = BlockServer(sessions, spawn, Path(folder))
    secure = BlockServer(sessions, spawn, None, tls=tls)
    await server.start("127.0.0.1")
    await secure.start("127.0.0.1")
    loop = asyncio.get_running_loop()
    while size := await loop.run_in_executor(None, pipe.recv):
        session = sessions.open()
        data = bytes(range(256)) * (size // 256)
        for name in range(TOTAL // size):
            session.put(name, data)
        session.finish()
        pipe.send(({**server.addresses, **secure.addresses}, session.id))
    sessions.close()
    server.close()
    secure.close()


async def measure(pipe: Connection, seconds: float, tls: PeerTls) -> None:
    """Print a line for each backend and size."""
    pipe.send(SIZES["1 MiB"])
    backends = pipe.recv()[0]
    for backend in backends:
        for label, size in SIZES.items():
            moved, spent, cpu = 0, 0.0, 0.0
            while spent < seconds:
                pipe.send(size)
                addresses, session = pipe.recv()
                begun, began = time.perf_counter(), _cpu()
                used = tls if backend == "tls" else None
                async for block in read({backend: addresses[backend]}, session, "bench", 0, tls=used):
                    moved += len(block.data)
                spent += time.perf_counter() - begun
                cpu += _cpu() - began
            rate = moved / spent / 1e9
            print(f"{backend:>5} {label:>7}: {rate:5.2f} GB/s, reader {cpu / moved * 1e9:.2f} s CPU per GB", flush=True)
    pipe.send(0)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def source(pipe: Connection, folder: str, devices: Path, tls: PeerTls) -> None:
    nixl.DEVICES = devices
    uvloop.run(serve(pipe, folder, tls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure, at least")
    parser.add_argument("--nixl", action="store_true", help="also without the network cards that it is for")
    arguments = parser.parse_args()
    if arguments.nixl:
        nixl.DEVICES = Path("/")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory() as folder:
        tls = certificates(Path(folder))
        process = multiprocessing.get_context("spawn").Process(target=source, args=(theirs, folder, nixl.DEVICES, tls))
        process.start()
        uvloop.run(measure(ours, arguments.seconds, tls))
        process.join()


if __name__ == "__main__":
    main()
