#!/usr/bin/env bash
# clients_env.sh PYTHON VENV: the clients of tests/clients, for Python and for Node, beside the usual
# environment, with which they do not go together.
#
# They are kept in a cache folder, one for each Python and set of versions, and made once: VENV and
# tests/clients/node_modules are links to it. A folder that was left half made is made anew.
set -euo pipefail

python=${1:?usage: tools/clients_env.sh PYTHON VENV} venv=$2
cd "$(dirname "$0")/.."
clients=tests/clients
wanted=("$clients/requirements.txt" "$clients/package.json" "$clients/package-lock.json")
tag=$({ "$python" -VV; cat "${wanted[@]}"; } | sha256sum | cut -c1-16)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/clients-$tag
if ! [ -e "$kept/.complete" ]; then
  echo "making the clients' environments in $kept"
  rm -rf "$kept"
  mkdir -p "$kept/node"
  cp "$clients/package.json" "$clients/package-lock.json" "$kept/node"
  npm ci --prefix "$kept/node" --ignore-scripts --no-audit --no-fund --loglevel=error &
  node=$!
  "$python" -m venv "$kept"
  # What no program imports need not be compiled.
  "$kept/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile \
    --requirement "$clients/requirements.txt"
  wait "$node"
  touch "$kept/.complete"
fi
rm -rf "$venv" "$clients/node_modules"
ln -s "$kept" "$venv"
ln -s "$kept/node/node_modules" "$clients/node_modules"
