#!/usr/bin/env bash
# llamacpp.sh PYTHON [FOLDER]: installs the extra 'llamacpp' into PYTHON's environment, llama.cpp built from its
# source for this processor, and gguf, with which tests write models. The wheel is kept in a cache folder
# and built once for each version, Python and set of instructions (3 to 4 minutes on two cores).
#
# With FOLDER the wheel goes there instead, with the OpenMP library that it is linked with, for an image. CPU may
# name the instructions to use, as /proc/cpuinfo does, in the place of this processor's.
#
# llama.cpp's own detection (GGML_NATIVE) is off: with AMX on, llama_decode was seen to crash. CMAKE_ARGS
# may add to what is found here, as -DGGML_CUDA=on.
set -euo pipefail

python=${1:?usage: tools/llamacpp.sh PYTHON [FOLDER]}
folder=${2:-}
VERSION=0.3.36 GGUF=0.19.0 DISKCACHE=5.6.3
pip=("$python" -m pip --disable-pip-version-check)

# Instructions of /proc/cpuinfo, and the option that uses them.
FLAGS="avx=AVX avx2=AVX2 fma=FMA f16c=F16C bmi2=BMI2 avx512f=AVX512 avx512_vnni=AVX512_VNNI
  avx512vbmi=AVX512_VBMI avx512_bf16=AVX512_BF16"

options() {
  local found pair state
  found=" ${CPU:-$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null || true)} "
  if [ "$(uname -m)" != x86_64 ] || [ -z "${found// /}" ]; then
    echo "-DLLAVA_BUILD=OFF" # a processor that llama.cpp finds out about by itself
    return
  fi
  printf '%s' "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"
  for pair in $FLAGS; do
    state=OFF
    [[ $found == *" ${pair%%=*} "* ]] && state=ON
    printf '%s' " -DGGML_${pair##*=}=$state"
  done
}

args="$(options) -DLLAMA_BUILD_COMMON=OFF ${CMAKE_ARGS:-}"
tag=$(printf '%s %s' "$args" "$("$python" -VV)" | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/llama-cpp-python-$VERSION-$tag
if ! compgen -G "$cache/*.whl" >/dev/null; then
  echo "building llama-cpp-python $VERSION for $cache"
  mkdir -p "$cache"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  CMAKE_ARGS=$args nice -n 5 "${pip[@]}" wheel --quiet --no-deps --no-binary llama-cpp-python \
    --wheel-dir "$scratch" "llama-cpp-python==$VERSION"
  mv "$scratch"/*.whl "$cache/"
fi
if [ -n "$folder" ]; then
  mkdir -p "$folder"
  cp "$cache"/*.whl "$folder/"
  ldconfig -p | sed -n 's/.*libgomp\.so\.1 .* => //p' | head -n 1 | xargs -r cp -t "$folder"
  exit
fi
"${pip[@]}" install --quiet --no-deps "$cache"/*.whl "diskcache==$DISKCACHE" "gguf==$GGUF"
