"""What is decided without vLLM: arguments, requests, logprobs, addresses."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.engine.adapter.arguments import listened
from dynamod.engine.base import EngineOptions
from dynamod.engine.names import ENGINES, require_installed
from dynamod.engine.vllm.arguments import NAMES, config_paths, defaults, leader, over_nodes
from dynamod.engine.vllm.engine import Vllm
from dynamod.engine.vllm.request import logprobs, prompt_logprobs, sampling
from dynamod.message import tokens
from dynamod.message.errors import EngineFailed, UserError
from dynamod.message.worker import Embed, Generate, Sampling, Stops

KNOWN = ("model", "max_model_len", "block_size", "tensor_parallel_size", "dtype", "tokenizer", "hf_config_path")


def options(**fields: Any) -> EngineOptions:
    return EngineOptions(path=Path("/m"), **fields)


def refused(given: EngineOptions, words: dict[str, Any] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        NAMES.merged(given, KNOWN, words or {})
    return caught.value.line()


def test_flags_arguments_and_words_become_one_mapping() -> None:
    given = options(
        arguments={"dtype": "float32", "max-model-len": 64, "argv": ["--block-size", "32"]},
        tensor_parallel_size=2,
        config_path=Path("/c"),
        context_length=64,
    )
    assert {**config_paths(given), **NAMES.merged(given, KNOWN, {"block_size": 32})} == {
        "dtype": "float32",
        "max_model_len": 64,
        "block_size": 32,
        "tensor_parallel_size": 2,
        "model": "/m",
        "hf_config_path": "/c",
        "tokenizer": "/c",
    }
    assert NAMES.merged(options(), KNOWN, {}) == {"model": "/m"}


def test_several_nodes() -> None:
    given = options(num_nodes=2, node_rank=1, leader_addr="[::1]:5000", tensor_parallel_size=4)
    merged = NAMES.merged(given, (*KNOWN, "nnodes", "node_rank"), {})
    values = defaults(leader(merged, given.leader_addr), sockets="/s")
    assert (values["nnodes"], values["node_rank"], values["tensor_parallel_size"]) == (2, 1, 4)
    assert (values["master_addr"], values["master_port"]) == ("::1", 5000)
    assert values["distributed_executor_backend"] == "mp"
    assert (
        defaults({**values, "distributed_executor_backend": "ray"}, sockets="/s")["distributed_executor_backend"]
        == "ray"
    )
    assert NAMES.devices({}, 4, values) == "4,5"
    with pytest.raises(UserError, match="argument master_port: 1, but --leader-addr is a:5000"):
        leader({"master_port": 1}, "a:5000")
    assert leader({"dtype": "auto"}, "") == {"dtype": "auto"}


def test_arguments_that_cannot_be() -> None:
    assert "vllm argument dtpye: vLLM has no such argument; did you mean 'dtype'?" in refused(
        options(arguments={"dtpye": 1})
    )
    assert "leave it out" in refused(options(arguments={"model": "/other"}))
    line = refused(options(context_length=64), {"max_model_len": 65})
    assert line == "vllm argument max_model_len: 65, but --context-length is 64; give one of them"
    assert "tensor_parallel_size: 1, but" in refused(options(tensor_parallel_size=2), {"tensor_parallel_size": 1})
    assert "given as 16 too" in refused(options(arguments={"block_size": 16}), {"block_size": 32})


def test_a_tokenizer_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert defaults({"model": str(tmp_path)}, sockets="")["skip_tokenizer_init"] is True
    (tmp_path / "tokenizer.json").touch()
    assert defaults({"model": str(tmp_path)}, sockets="")["skip_tokenizer_init"] is False
    assert defaults({"model": "/m", "tokenizer": str(tmp_path)}, sockets="")["skip_tokenizer_init"] is False
    given = {"model": str(tmp_path), "skip_tokenizer_init": True}
    assert defaults(given, sockets="")["skip_tokenizer_init"] is True


def test_defaults_give_way() -> None:
    made = defaults({"dtype": "auto"}, sockets="/run/x")
    assert made["skip_tokenizer_init"] is True
    assert not {"enforce_eager", "kv_cache_memory_bytes"} & made.keys()
    assert made["kv_events_config"]["endpoint"] == "ipc:///run/x-tcp-events:1"
    assert made["kv_events_config"]["enable_kv_cache_events"] is True
    made = defaults({"enforce_eager": False, "enable_prefix_caching": False}, cpu=True, kv_bytes=7, sockets="/run/x")
    assert (made["enforce_eager"], made["kv_cache_memory_bytes"]) == (False, 7)
    assert made["kv_events_config"]["enable_kv_cache_events"] is False
    assert defaults({}, cpu=True, sockets="")["enforce_eager"] is True


@pytest.mark.parametrize(
    ("endpoint", "rank", "where"),
    [
        ("ipc:///run/x-tcp-events:1", 0, "ipc:///run/x-tcp-events:1"),
        ("ipc:///run/x-tcp-events:1", 3, "ipc:///run/x-tcp-events:4"),
        ("ipc:///run/x", 0, "ipc:///run/x"),
        ("ipc:///run/x", 1, None),
        ("tcp://*:5557", 1, "tcp://127.0.0.1:5558"),
        ("tcp://*:0", 0, None),
        ("tcp://there:5557", 0, None),
        (None, 0, None),
    ],
)
def test_where_a_rank_is_heard(endpoint: str | None, rank: int, where: str | None) -> None:
    assert listened(endpoint, rank) == where


def test_words_are_read_by_the_engines_parser_without_its_defaults() -> None:
    parser = argparse.ArgumentParser(prog="x")
    parser.add_argument("--max-num-seqs", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model-path", required=True)
    assert NAMES.parsed(parser, ["--max-num-seqs", "3"]) == {"max_num_seqs": 3}
    with pytest.raises(UserError, match="vllm: argument --max-num-seqs: invalid int value: 'many'"):
        NAMES.parsed(parser, ["--max-num-seqs", "many"])
    with pytest.raises(UserError, match="vllm: unrecognized arguments: --nothing"):
        NAMES.parsed(parser, ["--nothing"])


def test_devices() -> None:
    assert NAMES.devices({}, 0, {"tensor_parallel_size": 2}) is None
    assert NAMES.devices({}, 2, {"tensor_parallel_size": 2}) == "2,3"
    assert NAMES.devices({"CUDA_VISIBLE_DEVICES": "4,5,7"}, 1, {"pipeline_parallel_size": 2}) == "5,7"
    with pytest.raises(UserError, match="--base-gpu-id 2: 2 GPUs from there on, and there are 3"):
        NAMES.devices({"CUDA_VISIBLE_DEVICES": "4,5,7"}, 2, {"data_parallel_size": 2})
    with pytest.raises(UserError, match="--base-gpu-id 1: 1 GPUs from there on, and there are 0"):
        NAMES.devices({"CUDA_VISIBLE_DEVICES": ""}, 1, {})


@pytest.mark.parametrize(
    ("values", "there", "backend"),
    [
        ({"tensor_parallel_size": 16}, 8, "ray"),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, 8, "ray"),
        ({"tensor_parallel_size": 8, "prefill_context_parallel_size": 2}, 8, "ray"),
        ({"tensor_parallel_size": 8, "nnodes": 1}, 8, None),
        ({"tensor_parallel_size": 8, "data_parallel_size": 2}, 8, None),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 8, "mp"),
        ({"tensor_parallel_size": 16, "distributed_executor_backend": "mp"}, 8, "mp"),
        ({}, 8, None),
        ({"tensor_parallel_size": 2}, None, None),
    ],
)
def test_ray_where_the_gpus_of_this_node_are_too_few(values: dict[str, Any], there: int | None, backend: Any) -> None:
    assert defaults(values, sockets="", devices=there, ray=True).get("distributed_executor_backend") == backend
    without = defaults(values, sockets="", devices=there, ray=False).get("distributed_executor_backend")
    assert without == (None if backend == "ray" else backend)


@pytest.mark.parametrize(
    ("values", "there", "size"),
    [
        ({"nnodes": 2}, 4, 8),
        ({"nnodes": 2, "node_rank": 1}, 4, 8),
        ({"nnodes": 3}, 0, 3),  # a CPU each
        ({"nnodes": 2, "tensor_parallel_size": 2}, 4, 2),
        ({"nnodes": 2, "pipeline_parallel_size": 2}, 4, None),
        ({"nnodes": 2, "data_parallel_size": 2}, 4, None),
        ({"nnodes": 1}, 4, None),
        ({}, 4, None),
    ],
)
def test_all_gpus_of_several_nodes_where_no_size_is_given(values: dict[str, Any], there: int, size: int | None) -> None:
    made = over_nodes(values, there)
    assert made == ({**values, "tensor_parallel_size": size} if size else values)


def request(prior: tuple[int, ...] = (), stops: Stops = Stops(), **fields: Any) -> Generate:
    ids = tokens.pack((1, 2))
    return Generate("r", "m", ids, stops, Sampling(**fields), eos_token_ids=(9,), prior_output=tokens.pack(prior))


def test_a_request_as_sampling_parameters() -> None:
    stops = Stops(max_tokens=20, stop_token_ids_hidden=(7,), min_tokens=5)
    made = sampling(request((), stops, temperature=0.0, top_k=-1, seed=3, logprobs=2), 20)
    assert made == {
        "temperature": 0.0,
        "seed": 3,
        "logprobs": 2,
        "max_tokens": 20,
        "min_tokens": 5,
        "stop_token_ids": [7, 9],
        "ignore_eos": True,
        "detokenize": False,
    }
    made = sampling(request((5, 5, 5), stops, seed=3), 20)
    assert (made["max_tokens"], made["min_tokens"]) == (17, 2)
    assert made["seed"] not in (3, sampling(request((5, 5), stops, seed=3), 20)["seed"])
    assert 0 <= made["seed"] < 1 << 63
    made = sampling(request((), Stops(ignore_eos=True)), 20)
    assert (made["stop_token_ids"], made["min_tokens"]) == ([], 0)


def test_logprobs_are_the_chosen_ones_and_the_best() -> None:
    def entry(*ranked: tuple[int, float, int]) -> dict[int, Any]:
        return {index: SimpleNamespace(logprob=logprob, rank=rank) for index, logprob, rank in ranked}

    found = [entry((8, -3.0, 40), (5, -0.1, 1), (6, -2.0, 2)), entry((5, -0.2, 1), (8, -1.0, 2))]
    assert logprobs([8, 5], found, 2) == ((-3.0, -0.2), (((5, -0.1), (6, -2.0)), ((5, -0.2), (8, -1.0))))
    assert logprobs([8, 5], found, 0) == ((-3.0, -0.2), ())
    behind = [None, *found]  # of the first token of a prompt there is none
    assert prompt_logprobs([4, 8], behind, 2) == ((None, -3.0), ((), ((5, -0.1), (6, -2.0))))
    assert prompt_logprobs([4, 8, 5], behind, 0) == ((None, -3.0, -0.2), ())


def test_vllm_is_installed_where_the_worker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "vllm", ENGINES["vllm"]._replace(needs="vllm_not_here"))
    with pytest.raises(UserError) as caught:
        require_installed("vllm")
    line = caught.value.line()
    assert "engine 'vllm' needs the package 'vllm_not_here'; in an environment of its own: PYTHON -m pip inst" in line
    assert "[vllm]', and name that" in line
    assert line.endswith("name that PYTHON with --python")


@pytest.mark.parametrize("leaves", [False, True])
async def test_texts_end_with_the_one_that_fails_or_with_their_client_vllm_replaced(leaves: bool) -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def encode(_prompt: Any, _params: Any, name: str) -> AsyncIterator[Any]:
        begun.append(name)
        try:
            if len(begun) == 3 and not leaves:
                raise EngineFailed("no vector")
            await asyncio.Event().wait()
            yield
        finally:
            ended.append(name)

    engine = object.__new__(Vllm)
    made: Any = engine
    made._vllm = SimpleNamespace(dead=(), full=(), refused=(), prompt=lambda ids: ids)
    made._llm, made._pooling_params = SimpleNamespace(encode=encode), lambda **_: None
    work = asyncio.ensure_future(engine.vectors_of(Embed("r", "m", ()), [[1], [2], [3]]))
    if leaves:
        while len(begun) < 3:  # noqa: ASYNC110 - three turns of the loop
            await asyncio.sleep(0)
        work.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError if leaves else EngineFailed):
            await work
    assert sorted(ended) == sorted(begun) == ["r.0", "r.1", "r.2"]


async def test_vectors_come_in_the_order_of_the_texts_vllm_replaced() -> None:
    given: list[Any] = []

    async def encode(prompt: Any, _params: Any, name: str, **more: Any) -> AsyncIterator[Any]:
        given.append((name, more))
        await asyncio.sleep(0)
        yield SimpleNamespace(outputs=SimpleNamespace(data=SimpleNamespace(tolist=lambda: [float(prompt[0])])))

    engine: Any = object.__new__(Vllm)
    engine._llm, engine._pooling_params = SimpleNamespace(encode=encode), lambda **_: None
    engine._vllm = SimpleNamespace(dead=(), full=(), refused=(), prompt=list)
    assert await engine.vectors_of(Embed("r", "m", ()), [[2], [1]]) == [[2.0], [1.0]]
    assert given == [("r.0", {}), ("r.1", {})]
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await engine.vectors_of(Embed("s", "m", (), trace=trace), [[1]])
    assert given[2:] == [("s.0", {"trace_headers": trace})]
