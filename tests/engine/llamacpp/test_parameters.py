"""The engine's arguments as llama.cpp gets them, and what they change."""

import ctypes
import logging
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.arguments import arguments_of
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.engine.llamacpp.library import buffers, library
from dynamod.engine.llamacpp.model import Model
from dynamod.engine.llamacpp.parameters import context_parameters, model_parameters
from dynamod.message.errors import UserError

pytestmark = pytest.mark.engine

PATH = Path(sample.path("sample.gguf"))


def context(**given: Any) -> Any:
    return context_parameters(library(), arguments_of(given))


def test_the_context_gets_them() -> None:
    plain, default = context(), library().llama_context_default_params()
    for name in ("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_beta_fast"):
        assert getattr(plain, name) == getattr(default, name)
    yarn = {"yarn_orig_ctx": 512, "yarn_ext_factor": 0.5, "yarn_attn_factor": 2.0}
    betas = {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}
    made = context(rope_scaling="yarn", rope_scale=4, rope_freq_base=20_000, **yarn, **betas)
    assert (made.rope_scaling_type, made.rope_freq_scale, made.rope_freq_base) == (2, 0.25, 20_000)
    assert {name: getattr(made, name) for name in (*yarn, *betas)} == {**yarn, **betas}
    assert [context(flash_attn=one).flash_attn_type for one in ("on", True, "off", False, "auto")] == [1, 1, 0, 0, -1]


def test_the_model_gets_them() -> None:
    api = library()
    overrides = "a=int:-5,b=float:0.5,c=bool:true,d=str:x=y"
    given = {"split_mode": "row", "main_gpu": 1, "tensor_split": "3,1", "n_gpu_layers": 7, "override_kv": overrides}
    params, kept = model_parameters(api, arguments_of({**given, "override-tensor": "blk.0=CPU", "n_cpu_moe": 2}))
    assert (params.split_mode, params.main_gpu, params.n_gpu_layers) == (2, 1, 7)
    assert list(params.tensor_split[:2]) == [3, 1]
    read = [(one.tag, one.key) for one in params.kv_overrides[:5]]
    assert read == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (0, b"")]
    values = [one.value for one in params.kv_overrides[:4]]
    assert (values[0].val_i64, values[1].val_f64, values[2].val_bool, values[3].val_str) == (-5, 0.5, True, b"x=y")
    [places] = [one for one in kept if isinstance(one, ctypes.Array) and hasattr(one[0], "pattern")]
    assert ctypes.addressof(places) == params.tensor_buft_overrides
    experts = rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert [one.pattern for one in places] == [b"blk.0", rb"blk\.0" + experts, rb"blk\.1" + experts, None]
    assert {one.buffer for one in places[:3]} == {buffers()["CPU"]}
    [places] = model_parameters(api, arguments_of({"cpu_moe": True}))[1]
    assert [one.pattern for one in places] == [experts, None]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"override_tensor": ["x=Nowhere"]}, "there is no buffer 'Nowhere'; known are CPU"),
        ({"tensor_split": [1] * 1000}, "1000 shares, llama.cpp knows"),
    ],
)
def test_what_llamacpp_has_not_is_said(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        model_parameters(library(), arguments_of(given))
    assert words in error.value.line()


AMX, OTHER = b"CPU : AVX512 = 1 | AMX_INT8 = 1 | OPENMP = 1 | ", b"CPU : AVX2 = 1 | OPENMP = 1 | "


@pytest.mark.parametrize(
    ("build", "repack", "moved"),
    [(OTHER, None, True), (OTHER, False, False), (AMX, None, False), (AMX, True, True), (AMX, False, False)],
)
def test_weights_keep_their_layout_in_a_mocked_build_for_amx(
    build: bytes, repack: bool | None, moved: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library(), "llama_print_system_info", lambda: build)
    caplog.set_level(logging.INFO, "dynamod.engine")
    arguments = arguments_of({} if repack is None else {"repack": repack})
    assert model_parameters(library(), arguments)[0].use_extra_bufts is moved
    assert ("the argument repack turns them on" in caplog.text) is (build is AMX and repack is None)


def test_a_model_is_loaded_with_them() -> None:
    arguments = arguments_of({"override_kv": "llama.context_length=int:512", "override_tensor": r"blk\..*=CPU"})
    model = Model(PATH, arguments, None, lambda: True)
    assert model.context_length == 512
    model.free()


async def test_a_context_may_be_longer_by_rope_scale(words: Any) -> None:
    async with System() as system:

        async def serve(name: str, context_length: int | None, **arguments: Any) -> Any:
            options = EngineOptions("m", PATH, context_length=context_length, arguments=arguments)
            return await words.House(system, LlamaCpp, options).start(name)

        house = await serve("long", None, rope_scaling="yarn", rope_scale=2)
        assert house.published[0].context_length == 4096
        answer = await house.ask(words.generate(list(range(5, 900)) * 3, max_tokens=2)).wait(60)
        assert len(answer.ids) == 2
        wanted = await serve("wanted", 3000, rope_freq_scale=0.5)
        assert wanted.published[0].context_length == 3000
    engine = LlamaCpp(EngineOptions("m", PATH, context_length=5000, arguments={"rope_scale": 2}), lambda *_: None)
    with pytest.raises(UserError, match="5000 is larger than the model's 2048, 2 times as long"):
        await engine.start()
    await engine.close()
