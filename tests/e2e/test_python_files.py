"""`out=pystr:FILE` and `out=pytok:FILE`: a user's file is the engine."""
# ruff: noqa: E501 -- the lines of the engine are as users have them

import json
from pathlib import Path
from typing import Any

from .test_chat import piped
from .together import together

PYSTR = """\
import asyncio

async def generate(request):
    yield {"id":"1","choices":[{"index":0,"delta":{"content":"The","role":"assistant"}}],"created":1841762283,"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local","object":"chat.completion.chunk"}
    await asyncio.sleep(0.01)
    yield {"id":"1","choices":[{"index":0,"delta":{"content":" capital","role":"assistant"}}],"created":1841762283,"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local","object":"chat.completion.chunk"}
    yield {"id":"1","choices":[{"index":0,"delta":{"content":" " + request["messages"][-1]["content"],"role":"assistant"}}],"created":1841762283,"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local","object":"chat.completion.chunk"}
    yield {"id":"1","choices":[{"index":0,"delta":{"content":"","role":"assistant"},"finish_reason":"stop"}],"created":1841762283,"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local","object":"chat.completion.chunk"}

if __name__ == "__main__":
    import sys
    print(f"MAIN: {sys.argv}")
"""

PYTOK = """\
import asyncio, json
import beside

async def generate(request):
    open("seen.json", "w").write(json.dumps(request))
    for token in request["token_ids"][: request["stop_conditions"]["max_tokens"]]:
        yield {"token_ids":[token],"tokens":None,"text":None,"cum_log_probs":None,"log_probs":None,"finish_reason":None}
        await asyncio.sleep(0)
"""


def write(machine: Any, name: str, text: str) -> Path:
    path = Path(machine.folder) / name
    path.write_text(text)
    return path


@together
def test_a_file_that_does_its_own_preprocessing(machine: Any) -> None:
    write(machine, "my_engine.py", PYSTR)
    words = ("out=pystr:my_engine.py", "/opt/models/none", "--model-name", "llama_3.2", "--http-port", 0)
    command = machine.start("dynamo-run", "in=http", *words, "--", "-n", "42", "--yes", cwd=machine.folder)
    url = command.ready()
    assert machine.chat(url, "of France", model="llama_3.2") == "The capital of France"
    stream = machine.stream(url, "of Spain", model="llama_3.2").read()
    assert (stream.text, stream.finish, stream.done) == ("The capital of Spain", "stop", True)
    (main,) = [line for line in command.out.splitlines() + command.err.splitlines() if "MAIN: " in line]
    words = main[main.index("[") :]
    assert words.startswith(f"['{machine.folder}/my_engine.py', '--model-path', '/opt/models/none', '--model-name'")
    assert "'--num-nodes', '1', '--node-rank', '0', '-n', '42', '--yes']" in words
    command.end()


@together
def test_a_further_node_is_told_of_the_leader_and_gets_no_requests(machine: Any) -> None:
    write(machine, "my_engine.py", PYSTR)
    nodes = ("--num-nodes=2", "--dist-init-addr=127.0.0.1:5000")
    words = ("out=pystr:my_engine.py", "--model-name", "two_nodes", *nodes)
    follower = machine.start("dynamo-run", "in=none", *words, "--node-rank=1", cwd=machine.folder)
    follower.ready()
    (main,) = [line for line in follower.out.splitlines() + follower.err.splitlines() if "MAIN: " in line]
    assert "'--num-nodes', '2', '--node-rank', '1', '--leader-addr', '127.0.0.1:5000'" in main
    follower_pid = machine.row("Worker")["pid"]
    url = machine.start("dynamo-run", "in=http", *words, "--http-port=0", cwd=machine.folder).ready()
    machine.until(lambda: "two_nodes" in machine.ask(url, "/v1/models")[1])
    instances = json.loads(machine.ask(url, "/health")[1])["instances"]
    assert len(instances) == 1
    assert instances[0]["pid"] != follower_pid


@together
def test_a_file_that_takes_tokens(machine: Any) -> None:
    write(machine, "my_engine.py", PYTOK)
    write(machine, "beside.py", "")
    done = piped(machine, "echo me", "out=pytok:my_engine.py", "--model-path", "sample", "--model-name", "mine")
    assert done.returncode == 0, done.stderr
    assert "echo me" in done.stdout
    seen = json.loads((machine.folder / "seen.json").read_text())
    assert seen["stop_conditions"].keys() >= {"max_tokens", "stop", "stop_token_ids_hidden", "min_tokens", "ignore_eos"}
    assert seen["sampling_options"]["temperature"] == 0.7
    assert {"token_ids", "eos_token_ids", "mdc_sum", "annotations"} <= seen.keys()


@together
def test_in_a_graph(machine: Any) -> None:
    write(machine, "my_engine.py", PYSTR)
    write(
        machine, "c.yaml", "graph: graphs.agg:Frontend\nWorker: {engine: 'pystr:my_engine.py'}\nFrontend: {port: 0}\n"
    )
    command = machine.start("dynamo", "serve", "-f", "c.yaml", cwd=machine.folder)
    url = command.ready()
    assert machine.chat(url, "x", model="my_engine") == "The capital x"
    command.end()


@together
def test_mistakes(machine: Any) -> None:
    write(machine, "torn.py", "async def generate(request:\n")
    write(machine, "empty.py", "x = 1\n")
    write(machine, "blocks.py", "def generate(request):\n    yield {}\n")
    write(machine, "fails.py", "import not_there\nasync def generate(request):\n    yield {}\n")
    write(machine, "serves.py", "import asyncio\n\nasync def worker(): ...\n\nasyncio.run(worker())\n")
    cases = {
        "out=pystr:nothere.py": "nothere.py: No such file",
        "out=pystr:": "needs a file",
        "out=pystr:torn.py": "torn.py:1: ",
        "out=mocker:torn.py": "takes no file",
        "out=echo_full -- -n 1": "takes no words after --",
        "out=echo_full --num-nodes 2": "runs on one node",
        "out=pystr:empty.py": "has no generate",
        "out=pystr:serves.py": "a file that serves on its own: python serves.py",
        "out=pystr:blocks.py": "async def",
        "out=pystr:fails.py": "ModuleNotFoundError: No module named 'not_there'",
    }
    for words, says in cases.items():
        done = machine.run("dynamo-run", "in=http", "--http-port", "0", *words.split(), cwd=machine.folder)
        assert done.code != 0, words
        assert says in done.err, (words, done.err)
