"""`register_llm`: what it takes and what it refuses, before anything is served."""

from typing import Any

import pytest

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, Endpoint
from dynamod.message.errors import UserError


async def endpoint_of(runtime: DistributedRuntime) -> Endpoint:
    return runtime.namespace("test").component("backend").endpoint("generate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ModelType.Embedding, "./nowhere"), r"model './nowhere' is neither a path"),
        (("Backend", "sample"), "'Backend' is no model type"),
        ((ModelType.Backend, "./nowhere"), r"model './nowhere' is neither a path"),
        ((ModelType.Chat, "./nowhere"), r"model './nowhere' is neither a path"),
        ((ModelType.Backend, "sample", "m", 10**6), "context length 1000000 is larger than the model's"),
        ((ModelType.Chat, "sample", "m", 0), "context_length is 0"),
        ((ModelType.Backend, "sample", "m", None, 1.5), r"kv_cache_block_size is 1\.5"),
        ((ModelType.Backend, "sample", "m", None, 16, None, -1), "migration_limit is -1"),
    ],
)
async def test_what_cannot_be_registered(arguments: tuple[Any, ...], message: str) -> None:
    runtime = DistributedRuntime()
    kind, *rest = arguments
    with pytest.raises(UserError, match=message):
        await register_llm(kind, await endpoint_of(runtime), *rest)


async def test_user_data_has_to_be_data() -> None:
    with pytest.raises(UserError, match="cannot send dict"):
        await register_llm(ModelType.Chat, await endpoint_of(DistributedRuntime()), "org/m", user_data={"x": object()})


async def test_arguments_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = await endpoint_of(DistributedRuntime())
    await register_llm(ModelType.Chat, endpoint, "org/m", router_mode="kv", lora_name="x", worker_type=None)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "register_llm: router_mode='kv' has no effect here",
        "register_llm: lora_name='x' has no effect here",
    ]
    await register_llm(ModelType.Chat, endpoint, "org/m")
    with pytest.raises(UserError, match=r"dyn://test\.backend\.generate serves model 'org/m'"):
        await register_llm(ModelType.Chat, endpoint, "org/other")
