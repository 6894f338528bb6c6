"""The engine's own arguments as flags: their types, and which words are whose."""

from typing import Any

import pytest

from dynamod.cli.arguments import Parser
from dynamod.cli.flags import parse, worker_flags
from dynamod.cli.run import build
from dynamod.cli.worker import model_at_end, own_arguments, sort
from dynamod.engine.names import ENGINES, check_arguments
from dynamod.message.errors import UserError


@pytest.mark.parametrize(
    ("engine", "words", "found"),
    [
        ("mocker", "--num-gpu-blocks 3 --speedup_ratio=1e3", {"num_gpu_blocks": 3, "speedup_ratio": 1000.0}),
        ("mocker", "--no-enable-prefix-caching --timing 2025", {"enable_prefix_caching": False, "timing": 2025}),
        ("mocker", "", {}),
        (
            "llamacpp",
            "--n-parallel 4 --flash-attn auto --mlock",
            {"max_num_seqs": 4, "flash_attn": "auto", "use_mlock": True},
        ),
        ("llamacpp", "--type-k q8_0 --n-gpu-layers -1", {"cache_type_k": "q8_0", "n_gpu_layers": -1}),
        ("openai", "--url http://127.0.0.1:1/v1 --model 7", {"url": "http://127.0.0.1:1/v1", "model": "7"}),
        ("openai", '--cmd ["a","b"]', {"cmd": ["a", "b"]}),
        ("trtllm", '--kv-cache-config {"tokens_per_block":64}', {"kv_cache_config": {"tokens_per_block": 64}}),
    ],
)
def test_values_have_the_arguments_types(engine: str, words: str, found: dict[str, Any]) -> None:
    assert own_arguments(engine, words.split()) == found
    if found:
        check_arguments(engine, {"cmd": "x", **found} if engine == "openai" else found, None)


OURS = [name for name, entry in ENGINES.items() if entry.check and not (entry.file or entry.words)]
"""Engines whose own flags are made here, and not by the engine."""


@pytest.mark.parametrize("engine", OURS)
def test_every_default_that_is_shown_is_a_good_value(engine: str) -> None:
    shown: dict[str, str] = {}

    def add(*names: str, **options: Any) -> None:
        if options["help"].startswith("default ") and "action" not in options:
            shown[options["dest"]] = options["help"].removeprefix("default ").strip('"')

    from dynamod.engine.names import add_flags

    add_flags(engine, add)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in shown.items() if value]
    given = own_arguments(engine, words)
    check_arguments(engine, {"cmd": "x", **given} if engine == "openai" else given, None)


def test_words_of_the_engine_and_ours() -> None:
    p = Parser()
    worker_flags(p)
    words = [
        "sample",
        "--context-length",
        "5",
        "--max-num-seqs",
        "4",
        "-tp",
        "2",
        "--rope-scale",
        "-1",
        "--model_name=x",
        "--list",
        "a",
        "b",
    ]
    ours, rest = sort(words, p.flags())
    assert ours == ["sample", "--context-length", "5", "--model_name=x"]
    assert rest == ["--max-num-seqs", "4", "-tp", "2", "--rope-scale", "-1", "--list", "a", "b"]


@pytest.mark.parametrize(
    ("rest", "model", "left"),
    [
        ("--enforce-eager sample", "sample", "--enforce-eager"),
        ("--max-num-seqs 4 --enforce-eager org/name:Q4_K_M", "org/name:Q4_K_M", "--max-num-seqs 4 --enforce-eager"),
        ("--list a org/name", "org/name", "--list a"),
        ("--enforce-eager .", ".", "--enforce-eager"),
        ("--dtype float16", "", "--dtype float16"),
        ("org/name --enforce-eager", "", "org/name --enforce-eager"),
        ("--tokenizer=org/name", "", "--tokenizer=org/name"),
        ("--enforce-eager /nothere", "", "--enforce-eager /nothere"),
        ("", "", ""),
    ],
)
def test_a_model_behind_a_flag_without_a_value(rest: str, model: str, left: str) -> None:
    assert model_at_end(rest.split()) == (model, left.split())


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ("out=vllm M --max-num-seqs 8", "unknown flag --max-num-seqs", "vllm's own flags stand after --"),
        ("out=sglang M --page-sise=8", "unknown flag --page-sise", "sglang's own flags stand after --"),
        ("out=mocker M --num-gpu-blocks 8", "unknown flag --num-gpu-blocks", "a flag of mocker stands after --"),
        ("out=mocker M --num_gpu_blocks 8", "unknown flag --num_gpu_blocks", "a flag of mocker stands after --"),
    ],
)
def test_flags_of_an_engine_have_their_place(words: str, says: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(["in=http", *words.split()])
    assert str(refused.value) == says
    assert hint in refused.value.hint


def test_short_flags_of_llama_cpp() -> None:
    typed = "in=http out=llama.cpp -m sample.gguf -c 4096 -ngl -1 -t 2 -- --parallel 4"
    words = typed.split()
    config = build(parse(words)).services["Worker"].config
    assert config["model"] == "sample.gguf"
    assert config["engine_args"] == {"n_ctx": 4096, "n_gpu_layers": -1, "n_threads": 2, "max_num_seqs": 4}
    with pytest.raises(UserError, match=r"`-c` is a flag of llama\.cpp, and the engine is mocker") as refused:
        parse(["in=http", "out=mocker", "sample", "-c", "4096"])
    assert refused.value.hint == "take out=llamacpp"
    with pytest.raises(UserError, match="--n-threads is given twice") as refused:
        build(parse([*words[:-3], "--extra-engine-args", '{"n_threads": 3}']))
    for flag in ("--ctx-size", "--n-gpu-layers", "--threads", "--cache-type-k"):
        with pytest.raises(UserError, match=f"unknown flag {flag}") as refused:
            parse(["in=http", "out=llamacpp", "sample.gguf", flag, "8"])
        assert "a flag of llamacpp stands after --" in refused.value.hint
    with pytest.raises(UserError, match="unknown flag --numa") as refused:
        parse(["in=http", "out=llamacpp", "sample.gguf", "--numa", "distribute"])
    assert "--numa is none of the flags of llama.cpp that are served, which stand after --" in refused.value.hint


@pytest.mark.parametrize("out", ["mocker", "auto", "echo_full", "nothing", "dyn://a.b.c"])
def test_a_flag_that_nobody_has(out: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(["in=http", f"out={out}", "--httpport", "8"])
    assert refused.value.line() == "unknown flag --httpport; did you mean '--http-port'? see dynamo-run --help"


def test_words_behind_two_dashes_reach_the_settings() -> None:
    words = ["in=http", "out=mocker", "sample", "--extra-engine-args", '{"dp_size": 2}', "--", "--seed", "5"]
    graph = build(parse(words))
    assert graph.services["Worker"].config["engine_args"] == {"dp_size": 2, "seed": 5}
    with pytest.raises(UserError, match="--dp-size is given twice"):
        build(parse([*words, "--dp-size", "3"]))
