from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynamod.message.errors import UserError
from dynamod.preprocess.reference import Reference
from dynamod.preprocess.selection import bytes_text, quantizations, select


def chosen(files: Any, **wanted: str) -> Any:
    return select(dict.fromkeys(files, 1), Reference("org/M", **wanted))


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("Llama-3.2-3B-Instruct-f16.gguf", "f16"),
        ("qwen2.5-7b-instruct-q4_0-00001-of-00002.gguf", "q4_0"),
        ("UD-Q4_K_XL/Qwen3-235B-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"),
        ("Q8_0/model-00001-of-00002.gguf", "Q8_0"),
        ("gemma-3-27b-it-IQ2_XXS.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("tinyllama.Q5_K_S.gguf", "Q5_K_S"),
        ("M-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("BitNet-TQ1_0.gguf", "TQ1_0"),
        ("sub/Phi-3-mini.gguf", "Phi-3-mini"),
        ("BF16/M-BF16.gguf", "BF16"),
    ],
)
def test_quantization_of_a_file(file: str, label: str) -> None:
    assert quantizations({file: 1}) == {label: [file]}


def test_what_is_no_language_model_is_no_choice() -> None:
    files = ["M-Q8_0.gguf", "mmproj-M-f16.gguf", "M.imatrix.gguf"]
    assert chosen(files).files == ("M-Q8_0.gguf",)


def test_weights_in_several_forms() -> None:
    tensors = ["config.json", "model-1.safetensors", "model-2.safetensors"]
    others = ["pytorch_model.bin", "consolidated.safetensors", "M-Q4_K_M.gguf", "original/x.pth", "onnx/m.onnx"]
    assert chosen([*tensors, *others]).files == tuple(tensors)
    assert chosen([*tensors, *others], quantization="Q4_K_M") == (("M-Q4_K_M.gguf",), "M-Q4_K_M.gguf")
    assert chosen(["config.json", "pytorch_model.bin"]).files == ("config.json", "pytorch_model.bin")
    assert chosen(["config.json", "consolidated.safetensors"]).files == ("config.json", "consolidated.safetensors")
    sizes = dict.fromkeys([*tensors, *others], 1)
    assert select(sizes, Reference("org/M"), weights=False).files == ("config.json",)
    assert chosen(tensors, file="config.json") == (("config.json",), "config.json")


def test_two_models_of_one_quantization() -> None:
    with pytest.raises(UserError, match=r"several models of this quantization: A-Q8_0\.gguf, B-Q8_0\.gguf") as caught:
        chosen(["A-Q8_0.gguf", "B-Q8_0.gguf"])
    assert caught.value.hint == "choose a file, for example org/M/A-Q8_0.gguf"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (812, "812 B"), (3_600_000, "3.6 MB"), (16.1e9, "16.1 GB"), (1000, "1.0 kB"), (5e15, "5000.0 TB")],
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


PART = st.sampled_from(
    ["M", "Q4_K_M", "Q8_0", "f16", "mmproj", "-00001-of-00002", "-00002-of-00002", "-", ".", "/", "x"]
)
NAME = st.builds("".join, st.lists(PART, min_size=1, max_size=5))
FILE = st.builds("{}{}".format, NAME, st.sampled_from([".gguf", ".safetensors", ".bin", ".json", ""]))


@example({"..gguf", ".gguf", "a/..gguf"}, "", True)
@given(st.sets(FILE, max_size=6), NAME | st.just(""), st.booleans())
def test_only_files_that_are_there(files: set[str], quantization: str, weights: bool) -> None:
    sizes = dict.fromkeys(files, 5)
    try:
        found = select(sizes, Reference("org/M", quantization=quantization), weights=weights)
    except UserError:
        return
    assert set(found.files) <= files
    assert not found.main or found.main in found.files
    assert len(set(found.files)) == len(found.files)
