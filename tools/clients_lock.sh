#!/usr/bin/env bash
# clients_lock.sh PYTHON: write tests/clients/requirements.txt, load.txt and package-lock.json anew, with
# versions that go together today of what requirements.in, load.in and package.json name, and of all that
# these need.
set -euo pipefail

python=${1:?usage: tools/clients_lock.sh PYTHON}
cd "$(dirname "$0")/../tests/clients"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# uv is not part of the environment. It chooses among all versions at once; pip takes ten minutes and more.
"$python" -m pip --disable-pip-version-check --quiet install --target "$scratch/uv" 'uv>=0.9,<1'
for set in requirements load; do
  {
    echo "# Written by 'make clients-lock' of $set.in."
    SSL_CERT_FILE=${SSL_CERT_FILE:-${PIP_CERT:-}} PYTHONPATH="$scratch/uv" "$scratch/uv/bin/uv" \
      pip compile --quiet --no-header --no-annotate --python "$python" "$set.in"
  } >"$scratch/$set.txt"
  mv "$scratch/$set.txt" "$set.txt"
done
npm install --package-lock-only --ignore-scripts --no-audit --no-fund --loglevel=error
