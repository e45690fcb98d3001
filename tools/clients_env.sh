#!/usr/bin/env bash
# clients_env.sh PYTHON VENV SET: the clients of tests/clients/SET.txt beside the usual environment, with
# which they do not go together. With the set 'requirements' come those for Node, of package-lock.json.
#
# They are kept in a cache folder, one for each Python and set of versions, and made once: VENV and
# tests/clients/node_modules are links to it. A folder that was left half made is made anew.
set -euo pipefail

usage='usage: tools/clients_env.sh PYTHON VENV SET'
python=${1:?$usage} venv=${2:?$usage} set=${3:?$usage}
cd "$(dirname "$0")/.."
clients=tests/clients
wanted=("$clients/$set.txt")
if [ "$set" = requirements ]; then
  wanted+=("$clients/package.json" "$clients/package-lock.json")
fi
tag=$({ "$python" -VV; cat "${wanted[@]}"; } | sha256sum | cut -c1-16)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/clients-$tag
if ! [ -e "$kept/.complete" ]; then
  echo "making the clients' environment in $kept"
  rm -rf "$kept"
  mkdir -p "$kept/node"
  if [ "$set" = requirements ]; then
    cp "$clients/package.json" "$clients/package-lock.json" "$kept/node"
    npm ci --prefix "$kept/node" --ignore-scripts --no-audit --no-fund --loglevel=error
  fi
  "$python" -m venv "$kept"
  # What no program imports need not be compiled.
  "$kept/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile \
    --requirement "$clients/$set.txt"
  touch "$kept/.complete"
fi
rm -rf "$venv"
ln -s "$kept" "$venv"
if [ "$set" = requirements ]; then
  rm -rf "$clients/node_modules"
  ln -s "$kept/node/node_modules" "$clients/node_modules"
fi
