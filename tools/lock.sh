#!/usr/bin/env bash
# Print the versions installed in an environment, as constraints for `pip install --constraint`.
# Left out: torch, whose build differs by machine (pyproject.toml pins its version); what a CUDA
# build brings along; this project; and the installer itself.
set -euo pipefail

python=${1:?usage: tools/lock.sh PYTHON}

echo "# Written by 'make lock'. Pins the version of what is installed; installs nothing by itself."
"$python" -m pip --disable-pip-version-check freeze --exclude-editable \
  | grep -E '^[A-Za-z0-9._-]+==[^+]+$' \
  | grep -vE '^(torch|triton|nvidia-.*|cuda-.*|pip|setuptools|wheel|tandem)=='
