"""`python -m tools.bench.audit`: CPU time per request that the audit log adds.

Two nodes in this process (`inside.py`), one with an audit log, get the same unary chat requests in turns, so that a
busy machine slows both. The difference is of one process: client, ingress and worker of both nodes are the same.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent))

import inside

WARM = 200


async def measured(requests: int, turns: int) -> dict[str, float]:
    """Microseconds of CPU per request without and with an audit log, and the median of the differences of turns."""
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as audited:
        async with inside.Inside(plain) as without, inside.Inside(audited, audit=True) as with_audit:
            nodes, costs = (without, with_audit), ([], [])  # type: ignore[var-annotated]
            for node in nodes:
                await node.ask(WARM, 1, stream=False)
            for _ in range(turns):
                for node, found in zip(nodes, costs, strict=True):
                    begun = time.process_time()
                    await node.ask(requests, 1, stream=False)
                    await asyncio.sleep(0.1)  # the thread writes
                    found.append((time.process_time() - begun) / requests * 1e6)
    differences = [after - before for before, after in zip(*costs, strict=True)]
    return {
        "without_us": round(statistics.median(costs[0]), 1),
        "with_us": round(statistics.median(costs[1]), 1),
        "audit_us": round(statistics.median(differences), 1),
    }


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="per turn (default: 500)")
    parser.add_argument("--turns", type=int, default=15, help="of each node (default: 15)")
    given = parser.parse_args()
    from dynamod.observe.logs import configure

    with open(os.devnull, "w") as nowhere:
        configure(component="bench/ingress.0", stream=nowhere)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(measured(given.requests, given.turns))))


if __name__ == "__main__":
    main()
