#!/usr/bin/env bash
# Packages the chart and pushes it as an OCI artifact: deploy/k8s/publish.sh REGISTRY/PATH
# With CHART_USER and CHART_PASSWORD it logs in first. The package holds dashboards and rules as files, so it
# needs nothing else of the repository.
set -euo pipefail
cd "$(dirname "$0")"

[ $# -eq 1 ] || {
  echo "usage: $0 REGISTRY/PATH" >&2
  exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${CHART_USER:-}" ]; then
  helm registry login "${1%%/*}" --username "$CHART_USER" --password-stdin <<<"${CHART_PASSWORD:?}"
fi
helm lint --strict --quiet tandem --values tandem/ci/insecure.yaml
helm package tandem --destination "$work"
helm push "$work"/tandem-*.tgz "oci://$1"
