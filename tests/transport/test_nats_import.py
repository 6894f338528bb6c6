"""What a process pays for having NATS at hand."""

import subprocess
import sys


def test_a_client_is_made_without_an_http_library() -> None:
    code = """
import sys
from dynamod.transport.nats.client import new_client
new_client()
assert "aiohttp" not in sys.modules, "nats-py brought aiohttp"
import aiohttp
assert aiohttp.ClientSession
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
