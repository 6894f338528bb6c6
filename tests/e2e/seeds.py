"""The documents that dynamod re-creates, line by line: what of them concerns running the system, and its state.

A line is the document's own text. `python -m tests.e2e.seeds > tests/e2e/SEEDS.md` writes the table. Not a test.

Left out is what builds the original or installs its tools (cargo, rustup, apt, brew, maturin, patches of vLLM).
"""

from typing import Literal, NamedTuple

Status = Literal["works", "differs", "needs GPU", "needs hub", "needs docker", "needs hardware"]


class Line(NamedTuple):
    """`text` of the documents; `note`: why it does not simply work, or what was adapted."""

    text: str
    status: Status = "works"
    note: str = ""


RUN = (
    Line("dynamo-run --help"),
    Line("dynamo-run Qwen/Qwen3-0.6B"),
    Line("dynamo-run in=text out=mistralrs Qwen/Qwen3-4B"),
    Line("dynamo-run out=<engine> <HUGGING_FACE_ORGANIZATION/MODEL_NAME>"),
    Line("dynamo-run in=http out=mistralrs <model> -v"),
    Line("dynamo-run in=text out=llamacpp <model> -vv"),
    Line("dynamo-run in=http out=mistralrs -v", "differs", "an engine without a model is one line that names `sample`"),
    Line("dynamo-run in=text out=llamacpp -vv", "differs", "as above"),
    Line("[--verbosity (-v|-vv)]"),
    Line("export DYN_LOG=debug"),
    Line("HF_TOKEN"),
    Line(
        'curl -L -o Llama-3.2-3B-Instruct-Q4_K_M.gguf "https://huggingface.co/bartowski/Llama-3.2-3B-Instruct-GGUF/'
        'resolve/main/Llama-3.2-3B-Instruct-Q4_K_M.gguf?download=true"',
        "needs hub",
    ),
    Line("huggingface-cli download meta-llama/Llama-3.2-3B-Instruct --local-dir /tmp/model", "needs hub"),
    Line("dynamo-run Llama-3.2-3B-Instruct-Q4_K_M.gguf"),
    Line("echo 'What is the capital of Tuvalu?' | dynamo-run ~/llms/Qwen3-0.6B-Q8_0.gguf --context-length 4096"),
    Line("dynamo-run in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf"),
    Line("dynamo-run in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf"),
    Line("curl localhost:8080/v1/models"),
    Line(
        'curl -d \'{"model": "Llama-3.2-3B-Instruct-Q4_K_M", "max_completion_tokens": 2049, "messages":[{"role":'
        '"user", "content": "What is the capital of South Africa?" }]}\' -H \'Content-Type: application/json\' '
        "http://localhost:8080/v1/chat/completions"
    ),
    Line(
        'curl -d \'{"model": "Llama-3.2-1B-Instruct-Q4_K_M", "max_tokens": 2049, "messages":[{"role":"user", '
        '"content": "What is the capital of South Africa?" }]}\' -H \'Content-Type: application/json\' '
        "http://localhost:8080/v1/chat/completions"
    ),
)
"""`dynamo-run` on one machine."""

CLUSTER = (
    Line("nats-server -js --trace --store_dir $(mktemp -d)"),
    Line("dynamo-run in=http out=auto"),
    Line("dynamo-run in=http out=dyn"),
    Line("dynamo-run in=dyn://llama3B.backend.generate out=mistralrs ~/llms/Llama-3.2-3B-Instruct"),
    Line("dyn://test"),
    Line("dynamo-run in=dyn://qwen3-32b.backend.generate /data/Qwen3-32B"),
    Line("dynamo-run in=dyn://llama3-1-8b.backend.generate /data/Llama-3.1-8B-Instruct/"),
    Line("llama3-1-8b.backend.load_metrics"),
    Line("dynamo-run in=http out=dyn://llama3B_pool"),
    Line("dynamo-run in=dyn://llama3B_pool out=mistralrs ~/llm_models/Llama-3.2-3B-Instruct"),
    Line(
        "dynamo-run in=http out=dyn://dynamo.backend.generate --model-name Qwen3-0.6B-Q8_0.gguf "
        "--model-path ~/llms/Qwen3-0.6B"
    ),
    Line(
        "dynamo-run in=dyn://dynamo.backend.generate out=llamacpp ~/llms/Qwen3-0.6B-Q8_0.gguf --static-worker "
        "--context-length 4096"
    ),
    Line("dynamo-run in=http out=auto --router-mode kv"),
    Line("dynamo-run in=http out=dyn --router-mode kv"),
    Line("--router-mode random|round-robin"),
    Line("--kv-overlap-score-weight"),
    Line("--router-temperature"),
    Line("--use-kv-events"),
    Line("dynamo-run in=dyn://... out=<engine> ... --migration-limit=3"),
    Line("docker compose -f deploy/docker-compose.yml up -d", "needs docker", "the file is checked by a test"),
)
"""Several processes and nodes."""

ENGINES = (
    Line("dynamo-run out=llamacpp ~/llms/gemma-3-1b-it-q4_0.gguf"),
    Line(
        "dynamo-run out=llamacpp ~/llms/Llama-4-Scout-17B-16E-Instruct-UD-IQ1_S.gguf --context-length 32768 "
        "--model-config ~/llms/Llama-4-Scout-17B-16E-Instruct"
    ),
    Line(
        "dynamo-run out=llama_cpp --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf "
        "--model-config ~/llm_models/Llama-3.2-3B-Instruct/"
    ),
    Line("echo '{\"speedup_ratio\": 10.0}' > mocker_args.json"),
    Line(
        "dynamo-run in=dyn://dynamo.mocker.generate out=mocker --model-path TinyLlama/TinyLlama-1.1B-Chat-v1.0 "
        "--extra-engine-args mocker_args.json"
    ),
    Line("dynamo-run in=http out=echo_full --model-name my_model"),
    Line("dynamo-run in=http out=echo_full"),
    Line("DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full"),
    Line("dynamo-run in=http out=echo_core --model-path <hf-repo-checkout>"),
    Line(
        'curl -N -d \'{"nvext": {"ignore_eos": true}, "stream": true, "model": "Qwen2.5-3B-Instruct", '
        '"max_completion_tokens": 4096, "messages":[{"role":"user", "content": "Tell me a story" }]}\' ...'
    ),
    Line(
        "dynamo-run in=batch:prompts.jsonl out=llamacpp <model>", note="with mistralrs where llama.cpp is not installed"
    ),
    Line('{"text": "What is the capital of France?"}'),
    Line(
        '{"text":"What is the capital of France?","response":"The capital of France is Paris.","tokens_in":7,'
        '"tokens_out":7,"elapsed_ms":1566}'
    ),
    Line("dynamo-run out=pystr:/home/user/my_python_engine.py"),
    Line("dynamo-run out=pytok:/home/user/my_python_engine.py --model-path <hf-repo-checkout>"),
    Line("async def generate(request):"),
    Line("await register_llm(model_type, endpoint, model_path)"),
    Line("hf://"),
    Line("ModelType.Chat"),
    Line("ModelType.Completion"),
)
"""Engines that run everywhere, formats, and Python files."""

INSIDE = "inside its environment, or with --python"

HEAVY = (
    Line("dynamo-run out=vllm Qwen/Qwen3-4B", note=INSIDE),
    Line("dynamo run out=vllm deepseek-ai/DeepSeek-R1-Distill-Llama-8B", note=INSIDE),
    Line("dynamo-run in=dyn://llama3B.backend.generate out=vllm ~/llms/Llama-3.2-3B-Instruct", note=INSIDE),
    Line("dynamo-run in=dyn://dynamo.endpoint.generate out=vllm /data/llms/Qwen/Qwen3-4B", note=INSIDE),
    Line("./dynamo-run in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct/", note=INSIDE),
    Line("python -m dynamo.vllm --help", note=INSIDE),
    Line("python -m dynamo.sglang.worker Qwen/Qwen3-4B", note=INSIDE),
    Line("python -m dynamo.sglang.worker --model-path ~/llms/Qwen3-0.6B", note=INSIDE),
    Line("python -m dynamo.sglang.worker --help", note=INSIDE),
    Line("dynamo-run out=sglang ~/llms/Llama-3.2-3B-Instruct --extra-engine-args sglang_extra.json", note=INSIDE),
)
"""vLLM and SGLang, in environments of their own: run by tests/engine/run_heavy.sh."""

SERVE = (
    Line("cd examples/llm", "differs", "there is no such folder: graphs and configs are found from any folder"),
    Line("dynamo serve graphs.agg:Frontend -f configs/agg.yaml"),
    Line("| MODEL TYPE | MODEL NAME                               | NAMESPACE | COMPONENT | ENDPOINT         |"),
    Line(
        'curl localhost:8000/v1/chat/completions   -H "Content-Type: application/json"   -d \'{ "model": '
        '"deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "messages": [ { "role": "user", "content": "Hello, how are '
        'you?" } ], "stream":false, "max_tokens": 300 }\' | jq'
    ),
    Line("python -m dynamo.frontend --interactive"),
    Line("python -m dynamo.frontend [--http-port 8080]"),
    Line("? User › Hello, how are you?"),
)
"""Graphs, and the frontend alone."""

NODES = "two nodes were tried on CPUs (test_heavy_nodes.py)"

SGLANG = (
    Line(
        "dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B --tensor-parallel-size 2 "
        "--base-gpu-id 0",
        "needs GPU",
    ),
    Line("dynamo-run out=sglang <model> --tensor-parallel-size 4 --base-gpu-id 4", "needs GPU"),
    Line(
        "./dynamo-run in=http out=sglang --model-path ~/llms/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 8",
        "needs GPU",
    ),
    Line("dynamo-run out=sglang ~/llms/Llama-4-Scout-17B-16E-Instruct/ --tensor-parallel-size 8", "needs GPU"),
    Line(
        "dynamo-run out=sglang /data/models/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16 --node-rank 0 "
        "--num-nodes 2 --leader-addr 10.217.98.122:5000",
        "needs GPU",
        NODES,
    ),
    Line(
        "python3 -m sglang.launch_server --model-path /data/models/DeepSeek-R1-Distill-Llama-70B --tp 16 "
        "--dist-init-addr 10.217.98.122:5000 --nnodes 2 --node-rank 1 --trust-remote-code",
        "needs GPU",
    ),
    Line(
        "dynamo-run in=http out=sglang --model-path ~/llm_models/DeepSeek-R1-Distill-Llama-70B/ "
        "--tensor-parallel-size 8 --num-nodes 2 --node-rank 0 --dist-init-addr 10.217.98.122:9876",
        "needs GPU",
        NODES,
    ),
    Line(
        "dynamo-run in=none out=sglang --model-path ~/llm_models/DeepSeek-R1-Distill-Llama-70B/ "
        "--tensor-parallel-size 8 --num-nodes 2 --node-rank 1 --dist-init-addr 10.217.98.122:9876",
        "needs GPU",
        NODES,
    ),
)

ACCELERATORS = (
    Line("./dynamo-run in=http out=vllm --model-path ~/llm_models/X.gguf --model-config ~/llm_models/X/", "needs GPU"),
    Line(
        "dynamo-run in=text out=vllm ~/llm_models/Llama-3.2-3B-Instruct/ --tensor-parallel-size 8 --num-nodes 2 "
        "--leader-addr 10.217.98.122:6539 --node-rank 0",
        "needs GPU",
        NODES,
    ),
    Line(
        "dynamo-run in=none out=vllm ~/llm_models/Llama-3.2-3B-Instruct/ --num-nodes 2 "
        "--leader-addr 10.217.98.122:6539 --node-rank 1",
        "needs GPU",
        f"{NODES}; the follower is told --tensor-parallel-size too",
    ),
    Line("ray start --head --port=6379", "needs GPU"),
    Line("ray start --address=<HEAD_NODE_IP>:6379", "needs GPU"),
    Line("dynamo-run out=vllm ~/llms/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16", "needs GPU"),
    Line("ray stop", "needs GPU"),
    Line("CUDA_VISIBLE_DEVICES", "needs GPU"),
    Line("dynamo-run in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0", "needs GPU"),
    Line(
        "dynamo-run in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0 --extra-engine-args trtllm_extra.yaml",
        "needs GPU",
    ),
    Line(
        "dynamo-run in=text out=trtllm --model-path /app/trtllm_engine/ "
        "--model-config ~/llm_models/Llama-3.2-3B-Instruct/",
        "needs GPU",
    ),
    Line("docker run --gpus all -it nvcr.io/nvidian/nemo-llm/trtllm-engine-builder:0.2.0 bash", "needs docker"),
)
"""What no machine without an accelerator can show."""

LINES = (*RUN, *CLUSTER, *ENGINES, *SERVE, *HEAVY, *SGLANG, *ACCELERATORS)


METRICS = """
import asyncio

from dynamo.runtime import dynamo_worker


@dynamo_worker()
async def worker(runtime):
    client = await runtime.namespace("llama3-1-8b").component("backend").endpoint("load_metrics").client()
    await client.wait_for_instances()
    async for item in await client.random({}):
        print(item.data(), flush=True)


asyncio.run(worker())
"""
STR = """
import asyncio

async def generate(request):
    for text in ("The", " capital", " of", " France", " is", " Paris", "."):
        yield {"id":"1","choices":[{"index":0,"delta":{"content":text,"role":"assistant"}}],"created":1841762283,
               "model":"Llama-3.2-1B-Instruct","system_fingerprint":"local","object":"chat.completion.chunk"}
        await asyncio.sleep(0.01)
    yield {"id":"1","choices":[{"index":0,"delta":{"content":"","role":"assistant"},"finish_reason":"stop"}],
           "created":1841762283,"model":"Llama-3.2-1B-Instruct","system_fingerprint":"local",
           "object":"chat.completion.chunk"}
"""
TOK = """
import asyncio

async def generate(request):
    known = {"max_tokens", "stop", "stop_token_ids_hidden", "min_tokens", "ignore_eos"}
    assert request["stop_conditions"].keys() >= known, request
    assert {"n", "best_of", "temperature", "top_p", "top_k", "min_p"} <= request["sampling_options"].keys(), request
    yield {"token_ids":[request["token_ids"][0]]}
    await asyncio.sleep(0.01)
    yield {"token_ids":[791],"tokens":None,"text":None,"cum_log_probs":None,"log_probs":None,"finish_reason":None}
"""


def counts() -> str:
    """How many lines have which status."""
    found = [line.status.split()[0] for line in LINES]
    return ", ".join(f"{found.count(kind)} {kind}" for kind in ("works", "differs", "needs"))


def table() -> str:
    """The table as Markdown."""
    head = f"""# The documents of the original, line by line

Every command, request, format and snippet of the five documents that concerns running the system: {counts()}.
`test_seeds.py` runs what works or differs, adapted only in model, port, path and context length. This page is written
by `python -m tests.e2e.seeds`.

| line | status | note |
|---|---|---|
"""
    rows = (f"| `{line.text.replace('|', chr(92) + '|')}` | {line.status} | {line.note} |" for line in LINES)
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
