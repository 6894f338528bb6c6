#!/bin/sh
# Makes environments with vLLM and SGLang for CPUs and this checkout, gets llama.cpp's chat templates, and runs the tests
# that need them (about 25 minutes).
# usage: tests/engine/run_heavy.sh [folder for the environments, kept for the next time] [words for pytest]
set -eu
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:-build/heavy}")
[ $# -gt 0 ] && shift
for engine in vllm sglang; do
    deploy/cpu_engine.sh "$engine" "$folder/$engine"
done
if [ ! -e "$folder/templates" ]; then
    "$folder/vllm/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$folder" llama-cpp-python==0.3.36
    mkdir "$folder/templates"
    tar -xzf "$folder/llama_cpp_python-0.3.36.tar.gz" -C "$folder/templates" --strip-components=5 \
        --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
    rm "$folder/llama_cpp_python-0.3.36.tar.gz"
fi
export DYNAMOD_TEST_VLLM_PYTHON="$folder/vllm/bin/python" DYNAMOD_TEST_SGLANG_PYTHON="$folder/sglang/bin/python"
export DYNAMOD_TEST_TEMPLATES="$folder/templates"
uv run --extra llama_cpp pytest -q -m heavy -o timeout=3600 "$@" tests
