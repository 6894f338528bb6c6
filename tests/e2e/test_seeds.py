"""The documents that dynamod re-creates, walked on one machine: commands, engines, formats, Python files.

A line is adapted in model, port, path and context length, and in nothing else.
"""

import ast
import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dynamod.preprocess.locate import locate

from ..hub import Hub
from . import seed_files
from .nodes import models
from .python_files import CHAT, OWN
from .test_chat import Terminal, piped
from .walking import ASK_1B, ASK_3B, MODELS, PRETORIA, WALKED, adapted, ask, line_of, serve, text, walks

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl"),
]


@walks("dynamo-run --help", "dynamo-run in=http out=mistralrs -v", "dynamo-run in=text out=llamacpp -vv")
def test_help_and_an_engine_without_a_model(machine: Any) -> None:
    shown = machine.run("dynamo-run", "--help").out
    for flag in ("--router-mode", "--kv-overlap-score-weight", "--context-length", "--leader-addr", "--verbosity"):
        assert flag in shown
    for line in ("dynamo-run in=http out=mistralrs -v", "dynamo-run in=text out=llamacpp -vv"):
        assert re.search("needs|install", machine.run(*line.split()).mistake())


CHATS = (
    "dynamo-run Qwen/Qwen3-0.6B",
    "dynamo-run Qwen/Qwen3-4B",
    "dynamo-run Qwen/Qwen2.5-3B-Instruct",
    "dynamo-run in=text out=mistralrs Qwen/Qwen3-4B",
    "dynamo-run out=<engine> <HUGGING_FACE_ORGANIZATION/MODEL_NAME>",
    "dynamo-run Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    "dynamo-run Llama-3.2-1B-Instruct-Q4_K_M.gguf",
)


@walks(*CHATS, "? User › Hello, how are you?", "export DYN_LOG=debug")
@pytest.mark.parametrize("line", CHATS)
def test_a_chat_in_the_terminal(machine: Any, line: str) -> None:
    pytest.importorskip("mistralrs")
    debug = line == CHATS[0]
    if debug:
        machine.env["DYN_LOG"] = "debug"
    chat = Terminal(machine, *adapted(line.replace("<engine>", "mistralrs"))[1:])
    chat.until("User ›")
    chat.type("What is the capital of South Africa?\r")
    chat.until(PRETORIA)
    chat.until("User ›")
    assert ("DEBUG" in chat.text) == debug
    assert chat.end("\x04") == 0


@walks(line_of("dynamo-run in=["))
def test_the_usage(machine: Any) -> None:
    """Every flag of it at once, and every input and output."""
    pytest.importorskip("mistralrs")
    usage = line_of("dynamo-run in=[")
    (machine.folder / "args.json").write_text("{}")
    values = {"<path>": "sample", "<served-model-name>": "mine", "<hf-repo>": str(locate("sample")), "N": "512"}
    values |= {"8080": "0", "random|round-robin|kv": "kv", "(-v|-vv)": "-v"}
    given = [
        f"{flag}{sign}{values.get(value, value)}".split()
        for flag, sign, value in re.findall(r"\[(--[\w-]+)([= ])([^\]]+)\]", usage)
    ]
    assert len(given) == usage.count("[--") == 16
    words = [word for words in given for word in words]
    url = machine.start("dynamo-run", "in=http", "out=mistralrs", *words).ready()
    assert text(ask(machine, url, ASK_3B, "mine")) == PRETORIA
    machine.commands[-1].end()
    for output in re.findall(r"[\w]+", usage[usage.index("out=") + 4 :].split()[0]):
        shown = machine.run(
            "dynamo-run", "in=http", f"out={output}", *(["sample"] if output != "dyn" else []), "--dry-run"
        )
        assert (shown.code, '"Frontend"' in shown.out) == (0, True), shown.err
    shown = machine.run("dynamo-run", "in=dyn://a.b.c", "out=mistralrs", "sample", "--dry-run")
    assert "Worker dyn://a.b.c" in shown.out
    (machine.folder / "prompts").mkdir()
    for name in ("one", "two"):
        (machine.folder / f"prompts/{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    done = piped(machine, "", "in=batch:prompts", "out=echo_full")
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        assert json.loads((machine.folder / f"prompts/{name}.output.jsonl").read_text())["response"] == name


@walks("HF_TOKEN", "hf://")
def test_a_model_of_the_hub(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server that has the hub's paths and wants a token."""
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    files = {file.name: file.read_bytes() for file in Path(locate("sample")).iterdir() if file.suffix == ".json"}
    with Hub({"meta-llama/Toy": files}).running() as hub:
        hub.gated, hub.token = True, "mine"
        machine.env.update(HF_ENDPOINT=hub.url, HF_HOME=str(machine.folder))
        words = ("out=echo_core", "hf://meta-llama/Toy")
        refused = piped(machine, "hello", *words)
        assert (refused.returncode != 0, "set HF_TOKEN" in refused.stderr) == (True, True), refused.stderr
        machine.env["HF_TOKEN"] = "mine"
        assert "hello" in piped(machine, "hello", *words).stdout


@walks(
    "echo 'What is the capital of Tuvalu?' | dynamo-run ~/llms/Qwen3-0.6B-Q8_0.gguf --context-length 4096",
    "[--verbosity (-v|-vv)]",
)
def test_one_prompt_from_a_pipe(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    said, _, command = line_of("echo 'What").partition(" | ")
    words = adapted(command)[1:]
    for more in ([], ["--verbosity", "-vv"]):
        done = piped(machine, shlex.split(said)[1].replace("Tuvalu", "South Africa"), *words, *more)
        assert (done.returncode, done.stdout) == (0, f"{PRETORIA}\n")
        assert ("DEBUG" in done.stderr) == bool(more)


@walks(
    "dynamo-run in=http out=mistralrs <model> -v",
    "dynamo-run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    "dynamo-run in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    MODELS,
    ASK_3B,
    ASK_1B,
)
def test_http(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    for line, question in (
        ("dynamo-run in=http out=mistralrs <model> -v", ASK_3B),
        ("dynamo-run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf", ASK_3B),
        ("dynamo-run in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf", ASK_1B),
    ):
        url = serve(machine, line)
        assert [model["id"] for model in json.loads(ask(machine, url, MODELS))["data"]] == ["sample"]
        assert text(ask(machine, url, question)) == PRETORIA
        machine.commands[-1].end()


@walks(
    "dynamo-run in=text out=llamacpp <model> -vv",
    "dynamo-run out=llamacpp ~/llms/gemma-3-1b-it-q4_0.gguf",
    "dynamo-run out=llamacpp ~/llms/Qwen3-0.6B-Q8_0.gguf",
    line_of("dynamo-run out=llamacpp ~/llms/Llama-4"),
    line_of("dynamo-run out=llama_cpp"),
)
def test_llamacpp(machine: Any) -> None:
    pytest.importorskip("llama_cpp")
    for line in WALKED["test_llamacpp"]:
        words = [str(locate("sample.gguf")) if word == "sample" else word for word in adapted(line)[1:]]
        chat = Terminal(machine, *words)
        chat.until("User ›")
        chat.type("What is the capital of South Africa?\r")
        chat.until(PRETORIA)
        chat.until("User ›")
        assert chat.end("\x04") == 0


@walks("python -m dynamo.llama_cpp --model-path ~/llms/Qwen3-0.6B-Q8_0.gguf")
def test_a_worker_of_llamacpp(machine: Any) -> None:
    pytest.importorskip("llama_cpp")
    (line,) = WALKED["test_a_worker_of_llamacpp"]
    serve(machine, line.removeprefix("python -m "))
    url = serve(machine, "dynamo-run in=http out=auto")
    machine.until(lambda: machine.serves(url))
    assert text(ask(machine, url, ASK_3B)) == PRETORIA


@walks(
    "dynamo-run in=http out=echo_full --model-name my_model",
    "dynamo-run in=http out=echo_full",
    "DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full",
    "dynamo-run in=http out=echo_core --model-path <hf-repo-checkout>",
    line_of("curl -N -d"),
)
def test_echo(machine: Any) -> None:
    for line in (
        "dynamo-run in=http out=echo_full --model-name my_model",
        "dynamo-run in=http out=echo_full",
        "DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full",
    ):
        url = serve(machine, line)
        (model,) = [one["id"] for one in json.loads(ask(machine, url, MODELS))["data"]]
        assert ("--model-name" not in line) or model == "my_model"
        assert text(ask(machine, url, ASK_3B, model)) == "What is the capital of South Africa?"
        machine.commands[-1].end()
    url = serve(machine, "dynamo-run in=http out=echo_core --model-path <hf-repo-checkout>")
    events = [line[6:] for line in ask(machine, url, line_of("curl -N -d")).splitlines() if line.startswith("data: {")]
    told = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)
    assert told == "<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\n"


@walks(
    "dynamo-run in=batch:prompts.jsonl out=llamacpp <model>",
    '{"text": "What is the capital of France?"}',
    line_of('{"text":"What'),
)
def test_a_batch(machine: Any) -> None:
    pytest.importorskip("mistralrs")
    first = '{"text": "What is the capital of France?"}'
    (machine.folder / "prompts.jsonl").write_text(f"{first}\n{first.replace('France', 'Spain')}\n")
    words = adapted("dynamo-run in=batch:prompts.jsonl out=llamacpp <model>")[1:]
    there = importlib.util.find_spec("llama_cpp") is not None
    model = str(locate("sample.gguf")) if there else "sample"
    words = [word.replace("llamacpp", "llamacpp" if there else "mistralrs") for word in words[:-1]]
    done = piped(machine, "", *words, model)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (machine.folder / "output.jsonl").read_text().splitlines()]
    shown = json.loads(line_of('{"text":"What'))
    assert all(row.keys() >= shown.keys() for row in rows)
    assert rows[0]["response"] == shown["response"]
    assert rows[1]["response"] == shown["response"].replace("France", "Spain").replace("Paris", "Madrid")


@walks(
    "dynamo-run out=pystr:/home/user/my_python_engine.py",
    "dynamo-run out=pytok:/home/user/my_python_engine.py --model-path <hf-repo-checkout>",
    "async def generate(request):",
    seed_files.CHUNK,
    line_of("{'token_ids'"),
    seed_files.TOKENS,
)
def test_an_engine_in_a_python_file(machine: Any) -> None:
    for line, file in (
        ("dynamo-run out=pystr:/home/user/my_python_engine.py", seed_files.STR),
        ("dynamo-run out=pytok:/home/user/my_python_engine.py --model-path <hf-repo-checkout>", seed_files.TOK),
    ):
        (machine.folder / "my_python_engine.py").write_text(file)
        words = [word.replace("/home/user", str(machine.folder)) for word in adapted(line)[1:]]
        done = piped(machine, "What is the capital of France?", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() if file is seed_files.TOK else done.stdout == "The capital of France is Paris.\n"
    shown = ast.literal_eval(line_of("{'token_ids'").replace("... lots more ... ", ""))
    request = ast.literal_eval((machine.folder / "request.txt").read_text())
    assert request.keys() >= shown.keys()
    for name in ("stop_conditions", "sampling_options"):
        assert request[name].keys() >= shown[name].keys()
    tokenizer = Tokenizer.from_file(str(locate("sample") / "tokenizer.json"))
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(request["token_ids"], skip_special_tokens=False) == prompt
    stops = {**shown["stop_conditions"], "stop_token_ids_hidden": request["eos_token_ids"]}
    stops["max_tokens"] = 2048 - len(request["token_ids"])  # the sample has no room for 8192
    assert request["stop_conditions"] == stops
    assert len(request["eos_token_ids"]) > 0
    assert re.fullmatch("[0-9a-f]{64}", request["mdc_sum"])
    assert request["annotations"] == shown["annotations"]


@walks(
    "await register_llm(model_type, endpoint, model_path)",
    "ModelType.Backend",
    "ModelType.Chat",
    "ModelType.Completion",
)
def test_python_files_that_register_themselves(machine: Any) -> None:
    assert "await register_llm(model_type, endpoint, model_path)" in OWN
    url = serve(machine, "dynamo-run in=http out=auto")
    machine.script(OWN, name="my_engine")
    machine.script(CHAT, name="my_chat")
    machine.until(lambda: {"sample", "org/talker", "org/writer"} <= {*models(machine, url)})
    assert "hello there" in machine.chat(url, "hello there")
    assert machine.chat(url, "hello there", model="org/talker") == "HELLO THERE "
    written = machine.ask(url, "/v1/completions", {"model": "org/writer", "prompt": "abc"})[1]
    assert json.loads(written)["choices"][0]["text"] == "cba"


@walks("model_name", "context_length", "kv_cache_block_size", "user_data")
def test_keywords_of_register_llm(machine: Any) -> None:
    """What clients see of them; the card is held against them in tests/sdk/test_runtime.py."""
    assert all(f"{name}=" in seed_files.KEYWORDS for name in WALKED["test_keywords_of_register_llm"])
    url = serve(machine, "dynamo-run in=http out=auto")
    machine.script(seed_files.KEYWORDS, name="keywords")
    machine.until(lambda: "mine" in models(machine, url))
    assert machine.chat(url, "hello", model="mine", ignore_eos=True) == "user\nhello\nassistant\n"
    status, refused = machine.ask(url, "/v1/completions", {"model": "mine", "prompt": "one " * 80})
    assert (status, json.loads(refused)["error"]["code"]) == (400, "context_length_exceeded")
