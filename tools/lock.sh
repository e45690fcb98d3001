#!/usr/bin/env bash
# lock.sh PYTHON CONSTRAINTS LOCK: writes the versions installed in an environment to CONSTRAINTS, for
# `pip install --constraint`, and to LOCK with the hashes of all their files, of every platform and
# Python, for `pip install --require-hashes`.
# torch is in CONSTRAINTS alone, by its version: its build, and so its hash, differs by machine. Left out
# of both: what a CUDA build brings along; this project; and the installers themselves.
set -euo pipefail

python=${1:?usage: tools/lock.sh PYTHON CONSTRAINTS LOCK}
constraints=${2:?usage: tools/lock.sh PYTHON CONSTRAINTS LOCK}
lock=${3:?usage: tools/lock.sh PYTHON CONSTRAINTS LOCK}
pip=("$python" -m pip --disable-pip-version-check)
made="# Written by 'make lock'."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

{
  echo "$made Pins the version of what is installed; installs nothing by itself."
  "${pip[@]}" freeze --exclude-editable |
    grep -E '^[A-Za-z0-9._-]+==[^+]+$' |
    grep -vE '^(torch|triton|nvidia-.*|cuda-.*|pip|setuptools|wheel|uv|tandem-edge|tandem-edge-lab)=='
} >"$scratch/hashed"
{
  cat "$scratch/hashed"
  "$python" -c 'from importlib.metadata import version; print("torch==" + version("torch").split("+")[0])'
} >"$scratch/constraints"

# uv is not part of the environment: it is only here that one asks for hashes.
"${pip[@]}" install --quiet --target "$scratch/uv" 'uv>=0.9,<1'
{
  echo "$made The versions of constraints.txt, with the hashes of all their files."
  SSL_CERT_FILE=${SSL_CERT_FILE:-${PIP_CERT:-}} PYTHONPATH="$scratch/uv" "$scratch/uv/bin/uv" \
    pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate \
    --python "$python" "$scratch/hashed"
} >"$scratch/lock"
mv "$scratch/constraints" "$constraints"
mv "$scratch/lock" "$lock"
