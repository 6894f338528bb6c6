#!/usr/bin/env python3
"""Microseconds of the router's index: hash 4,000 tokens in blocks of 16, find 250 blocks among 8 workers, store blocks.

index.py [--peer-python VENV/bin/python]     the peer's own index, through its Python binding, in the same call
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

PEER = r"""
import json, time
from dynamo import _core
def best(work, rounds=7, times=200):
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(times): work()
        found.append((time.perf_counter() - begun) / times * 1e6)
    return min(found)
ids = [(i * 7919) % 32000 for i in range(4000)]
result = {"hash": best(lambda: _core.compute_block_hash_for_seq(ids, 16))}
local = _core.compute_block_hash_for_seq(ids, 16)
tree = _core.RadixTree()
def event(number, names):
    blocks = [{"block_hash": name, "tokens_hash": value} for name, value in names]
    return json.dumps({"event_id": number, "data": {"stored": {"parent_hash": None, "blocks": blocks}}}).encode()
for worker in range(8):
    tree.apply_event(worker, event(1, list(enumerate(local))))
assert tree.find_matches(local).scores
result["find"] = best(lambda: tree.find_matches(local))
events = [event(n, [(n * 1000 + place, n * 1000 + place) for place in range(250)]) for n in range(2, 202)]
begun = time.perf_counter()
for one in events: tree.apply_event(0, one)
tree.find_matches(local)
result["store"] = (time.perf_counter() - begun) / len(events) / 250 * 1e6
print(json.dumps(result))
"""


ROWS = {
    "hash": "hash 4,000 tokens in blocks of 16",
    "chain": "the same with sequence hashes",
    "find": "find 250 blocks among 8 workers",
    "store": "store, per block",
}


def best(work: Callable[[], object], rounds: int = 7, times: int = 200) -> float:
    """Microseconds of the fastest round's mean."""
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(times):
            work()
        found.append((time.perf_counter() - begun) / times * 1e6)
    return min(found)


def ours() -> dict[str, float]:
    """Our index. `hash`: local hashes, as the peer's function; `chain`: with sequence hashes, as a request needs."""
    from dynamod.kvcache.hashes import block_hashes, local_hashes
    from dynamod.message import tokens
    from dynamod.message.kv_events import Stored, pack, unpack
    from dynamod.router.index import BlockIndex

    ids = tokens.pack([(place * 7919) % 32000 for place in range(4000)])
    blocks, local = block_hashes(ids, 16), local_hashes(ids, 16)
    index = BlockIndex()
    for worker in range(8):
        index.apply(worker, Stored(None, tuple(blocks), tuple(local)))
    assert index.find(blocks) == dict.fromkeys(range(8), 250)
    words = [
        pack((Stored(None, tuple(range(n * 1000, n * 1000 + 250)), tuple(range(n * 1000, n * 1000 + 250))),))
        for n in range(2, 202)
    ]
    begun = time.perf_counter()
    for word in words:
        for event in unpack(word):
            index.apply(0, event)  # type: ignore[arg-type]
    store = (time.perf_counter() - begun) / len(words) / 250 * 1e6
    return {
        "hash": best(lambda: local_hashes(ids, 16)),
        "chain": best(lambda: block_hashes(ids, 16)),
        "find": best(lambda: index.find(blocks)),
        "store": store,
    }


def peer(python: str) -> dict[str, float]:
    """The same through the peer's binding; events as it takes them (JSON)."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # our package has its names
    answer = subprocess.run([python, "-c", PEER], capture_output=True, text=True, timeout=120, env=env)
    if answer.returncode:
        raise SystemExit(answer.stderr[-2000:])
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="the peer's interpreter")
    a = parser.parse_args()
    mine = ours()
    theirs = peer(a.peer_python) if a.peer_python else {}
    for name, text in ROWS.items():
        other = f", peer {theirs[name]:.2f}, ratio {theirs[name] / mine[name]:.2f}" if name in theirs else ""
        print(f"{text}: {mine[name]:.2f} us{other}")


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/tools/", 1)[0])
    main()
