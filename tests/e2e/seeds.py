"""The documents that dynamod re-creates, line by line: what of them concerns running the system, and its state.

A line is the document's own text. `python -m tests.e2e.seeds > tests/e2e/SEEDS.md` writes the table. Not a test.

Left out is what builds NVIDIA Dynamo or installs its tools (cargo, rustup, apt, brew, maturin, patches of vLLM).
"""

from typing import Literal, NamedTuple

from .seed_files import CHUNK, TOKENS

Status = Literal["works", "differs", "needs GPU", "needs hub", "needs docker", "needs hardware"]


class Line(NamedTuple):
    """`text` of the documents; `note`: why it does not simply work, or what was adapted."""

    text: str
    status: Status = "works"
    note: str = ""


RUN = (
    Line("dynamo-run --help"),
    Line(
        "dynamo-run in=[http|text|dyn://<path>|batch:<folder>] "
        "out=echo_core|echo_full|mistralrs|llamacpp|sglang|vllm|dyn "
        "[--http-port 8080] [--model-path <path>] [--model-name <served-model-name>] [--model-config <hf-repo>] "
        "[--tensor-parallel-size=1] [--context-length=N] [--num-nodes=1] [--node-rank=0] "
        "[--leader-addr=127.0.0.1:9876] [--base-gpu-id=0] [--extra-engine-args=args.json] "
        "[--router-mode random|round-robin|kv] [--kv-overlap-score-weight=1.0] [--router-temperature=0.0] "
        "[--use-kv-events=true] [--verbosity (-v|-vv)]"
    ),
    Line("dynamo-run Qwen/Qwen3-0.6B"),
    Line("dynamo-run Qwen/Qwen3-4B"),
    Line("dynamo-run Qwen/Qwen2.5-3B-Instruct"),
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
    Line("dynamo-run Llama-3.2-1B-Instruct-Q4_K_M.gguf"),
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
    Line("nats-server -js"),
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
    Line("dynamo-run out=llamacpp ~/llms/Qwen3-0.6B-Q8_0.gguf"),
    Line("python -m dynamo.llama_cpp --model-path ~/llms/Qwen3-0.6B-Q8_0.gguf"),
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
    Line(CHUNK),
    Line(
        "{'token_ids': [128000, 128006, 9125, 128007, ... lots more ... ], 'stop_conditions': {'max_tokens': 8192, "
        "'stop': None, 'stop_token_ids_hidden': [128001, 128008, 128009], 'min_tokens': None, 'ignore_eos': None}, "
        "'sampling_options': {'n': None, 'best_of': None, 'presence_penalty': None, 'frequency_penalty': None, "
        "'repetition_penalty': None, 'temperature': None, 'top_p': None, 'top_k': None, 'min_p': None, "
        "'use_beam_search': None, 'length_penalty': None, 'seed': None}, 'eos_token_ids': [128001, 128008, 128009], "
        "'mdc_sum': 'f1cd44546fdcbd664189863b7daece0f139a962b89778469e4cffc9be58ccc88', 'annotations': []}",
        note="with more keys, those of NVIDIA Dynamo's later versions",
    ),
    Line(TOKENS),
    Line("await register_llm(model_type, endpoint, model_path)"),
    Line("hf://"),
    Line("model_name"),
    Line("context_length"),
    Line("kv_cache_block_size"),
    Line("user_data"),
    Line("ModelType.Backend"),
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
    Line("./dynamo-run in=http out=vllm ~/llms/Llama-3.2-3B-Instruct/", note=INSIDE),
    Line("dynamo-run in=dyn://qwen3-32b.backend.generate out=vllm /data/Qwen3-32B", note=INSIDE),
    Line("dynamo-run in=dyn://llama3-1-8b.backend.generate out=vllm /data/Llama-3.1-8B-Instruct/", note=INSIDE),
    Line("python -m dynamo.vllm --help", note=INSIDE),
    Line("python -m dynamo.sglang.worker Qwen/Qwen3-4B", note=INSIDE),
    Line("python -m dynamo.sglang.worker --model-path ~/llms/Qwen3-0.6B", note=INSIDE),
    Line("python -m dynamo.sglang.worker deepseek-ai/DeepSeek-R1-Distill-Llama-8B", note=INSIDE),
    Line("python -m dynamo.sglang.worker --help", note=INSIDE),
    Line("dynamo-run out=sglang ~/llms/Llama-3.2-3B-Instruct --extra-engine-args sglang_extra.json", note=INSIDE),
)
"""vLLM and SGLang, in environments of their own: run by tests/engine/run_heavy.sh."""

SERVE = (
    Line("cd examples/llm", note="in a checkout; elsewhere graphs and configs are found from any folder"),
    Line("dynamo serve graphs.agg:Frontend -f configs/agg.yaml"),
    Line("| MODEL TYPE | MODEL NAME                               | NAMESPACE | COMPONENT | ENDPOINT         |"),
    Line(
        'curl localhost:8000/v1/chat/completions   -H "Content-Type: application/json"   -d \'{ "model": '
        '"deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "messages": [ { "role": "user", "content": "Hello, how are '
        'you?" } ], "stream":false, "max_tokens": 300 }\' | jq'
    ),
    Line(
        '{ "id": "5a8b4199-d005-47e2-83ed-bd8a6ec64b43", "choices": [ { "index": 0, "message": { "content": "...", '
        '"refusal": null, "tool_calls": null, "role": "assistant", "function_call": null, "audio": null }, '
        '"finish_reason": "stop", "logprobs": null } ], "created": 1742234675, '
        '"model": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "service_tier": null, "system_fingerprint": null, '
        '"object": "chat.completion", "usage": null }',
        note="`usage` is told",
    ),
    Line("curl -N"),
    Line("python -m dynamo.frontend --interactive"),
    Line("python -m dynamo.frontend [--interactive]"),
    Line("python -m dynamo.frontend"),
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
    Line(
        "dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B --tensor-parallel-size 2 "
        "--base-gpu-id 2",
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
    Line(
        "./dynamo-run in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf "
        "--model-config ~/llm_models/Llama-3.2-3B-Instruct/",
        "differs",
        "vLLM 0.32 reads no GGUF files: one line says so and names llamacpp",
    ),
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
        f"{NODES}; without --tensor-parallel-size a node takes all its GPUs, as many as the leader has to take",
    ),
    Line("ray start --head --port=6379", "needs GPU", "Ray's own command"),
    Line("ray start --address=<HEAD_NODE_IP>:6379", "needs GPU", "Ray's own command"),
    Line(
        "dynamo-run out=vllm ~/llms/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16",
        "needs GPU",
        "Ray is chosen where it is installed and this node has fewer GPUs",
    ),
    Line("ray stop", "needs GPU", "Ray's own command"),
    Line("CUDA_VISIBLE_DEVICES", note="it reaches the process of the engine"),
    Line('{ "dtype": "half", "trust_remote_code": true }', "needs GPU", "on CPUs it was tried with float32"),
    Line("backend: pytorch\nkv_cache_config:\n  event_buffer_max_size: 1024", "needs GPU"),
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
    Line(
        "sudo docker run --gpus all -it -v /home/user:/outside-home gitlab-master.nvidia.com:5005/dl/ai-services/"
        "libraries/rust/nim-nvllm/tensorrt_llm_runtime:85fa4a6f",
        "needs docker",
    ),
)
"""What a machine without an accelerator shows in part at most; commands of ours are read there (`--dry-run`)."""

_OURS = "the extra has the same name: `uv pip install '/path/to/dynamod[%s]'`"
_PARALLEL = "the libraries split a model over GPUs on their own; not tried, no GPU"
INSTALL = (
    Line('uv pip install "ai-dynamo[sglang]"', "differs", _OURS % "sglang"),
    Line('uv pip install "ai-dynamo[vllm]"', "differs", _OURS % "vllm"),
    Line('uv pip install "ai-dynamo[llama_cpp]" # CPU, see later for GPU', "differs", _OURS % "llama_cpp"),
    Line("uv pip install ai-dynamo[all]", "differs", _OURS % "all"),
    Line("uv pip install uvloop ai-dynamo", "differs", "uvloop comes with dynamod"),
    Line("uv pip install ai-dynamo-vllm", "differs", "vLLM needs no patch: " + _OURS % "vllm"),
    Line(
        'pip install llama-cpp-python -C cmake.args="-DGGML_CUDA=on"', "needs GPU", "the same; docs/get-started/gpu.md"
    ),
    Line(
        "cargo build --features cuda|metal|vulkan -p dynamo-run",
        "needs hardware",
        "dynamod needs no build; GPUs of engines: docs/get-started/gpu.md",
    ),
    Line(
        "If you have multiple GPUs, `mistral.rs` does automatic tensor parallelism. You do not need to pass any extra "
        "flags to dynamo-run to enable it.",
        "needs hardware",
        _PARALLEL,
    ),
    Line(
        "If you have multiple GPUs, llama.cpp does automatic tensor parallelism. You do not need to pass any extra "
        "flags to `dynamo-run` to enable it.",
        "needs hardware",
        _PARALLEL,
    ),
    Line("See docs/support_matrix.md", note="docs/operate/support-matrix.md"),
    Line("[request migration](../architecture/request_migration.md)", note="docs/explanation/migration.md"),
    Line(".devcontainer", "differs", "there is none: `uv sync` makes the environment (CONTRIBUTING.md)"),
    Line("Follow the Quickstart Guide to deploy to Kubernetes.", "differs", "dynamod has no Kubernetes backend yet"),
)
"""How the documents install and build, and the pages that they name."""

LINES = (*INSTALL, *RUN, *CLUSTER, *ENGINES, *SERVE, *HEAVY, *SGLANG, *ACCELERATORS)


def counts() -> str:
    """How many lines have which status."""
    found = [line.status.split()[0] for line in LINES]
    return ", ".join(f"{found.count(kind)} {kind}" for kind in ("works", "differs", "needs"))


def table() -> str:
    """The table as Markdown."""
    head = f"""# The documents of NVIDIA Dynamo, line by line

Every command, request, format and snippet of the five documents that concerns running the system: {counts()}.
`test_seeds*.py` run what works or differs, adapted only in model, port, path and context length; commands that need a
GPU are read, and their settings compared. This page is written by `python -m tests.e2e.seeds`.

| line | status | note |
|---|---|---|
"""
    rows = (
        f"| `{line.text.replace('|', chr(92) + '|').replace(chr(10), ' ⏎ ')}` | {line.status} | {line.note} |"
        for line in LINES
    )
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
