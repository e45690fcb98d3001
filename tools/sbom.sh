#!/usr/bin/env bash
# sbom.sh PYTHON TARGET: writes to TARGET what the environment of PYTHON consists of, with versions and
# licences, as CycloneDX JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:?usage: tools/sbom.sh PYTHON TARGET} target=${2:?usage: tools/sbom.sh PYTHON TARGET}
"$python" -m cyclonedx_py environment --gather-license-texts --pyproject pyproject.toml \
  --output-reproducible --no-validate --of JSON --output-file "$target" "$python"
