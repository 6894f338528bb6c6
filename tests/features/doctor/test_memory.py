"""The tables of `dynamo doctor memory`."""

from dynamod.features.doctor.commands import ProcessMemory
from dynamod.features.doctor.memory import memory
from dynamod.message.bounded import Bounded

MIB = 1 << 20


def test_processes_then_structures_that_hold_something() -> None:
    held = [
        Bounded("kept decisions", "", 250, 1000, "requests"),
        Bounded("kept responses", "memory", 16 * MIB, 64 * MIB, "bytes"),
        Bounded("mailbox", "/", 0, 64, "messages"),
    ]
    found = [
        ProcessMemory(process="dynamod", pid=1, rss=50 * MIB, pss=20 * MIB),
        ProcessMemory(process="agg/ingress.0", pid=2, rss=100 * MIB, descendants=MIB, bounded=held),
        ProcessMemory(process="agg/Worker.0", pid=3, error="does not answer: TimeoutError"),
    ]
    text = memory(found)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert rows == [
        ["PROCESS", "PID", "RSS", "PSS", "DESCENDANTS"],
        ["dynamod", "1", "50.0 MiB", "20.0 MiB", "0.0 MiB"],
        ["agg/ingress.0", "2", "100.0 MiB", "-", "1.0 MiB"],
        ["agg/Worker.0", "3", "0.0 MiB", "-", "0.0 MiB"],
        ["PROCESS", "STRUCTURE", "OF", "HOLDS", "BOUND", "FULL"],
        ["agg/ingress.0", "kept decisions", "", "250", "1,000 requests", "25.0%"],
        ["agg/ingress.0", "kept responses", "memory", "16.0 MiB", "64.0 MiB", "25.0%"],
    ]
    assert text.splitlines()[-2:] == [
        "1 further structures are empty; --output json lists them",
        "agg/Worker.0: does not answer: TimeoutError",
    ]


def test_without_structures_there_is_one_table() -> None:
    assert memory([ProcessMemory(process="dynamod", pid=1)]).count("PROCESS") == 1
