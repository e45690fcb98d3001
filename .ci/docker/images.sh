#!/usr/bin/env bash
# The two images that Dockerfiles start from, for a machine that may not reach the public hub.
#
#   tandem-ci/python   the Dockerfiles' Python where it can be pulled, else Debian 12 with its Python 3.11
#   tandem-ci/build    the same, with this machine's certificates and pip's local wheels
#   tandem-ci/prometheus   Debian's own Prometheus
#
# Only build stages use tandem-ci/build, so nothing of this machine gets into a service's image.
set -euo pipefail

BASE=tandem-ci/python:3.11
BUILD=tandem-ci/build:3.11
PROMETHEUS=tandem-ci/prometheus:debian
# python@sha256:…
PYTHON=$(sed -n 's/^ARG BASE_IMAGE=\([^:]*\):[^@]*@/\1@/p' "$(dirname "$0")/../../services/aggregator/Dockerfile")

main() {
  have "$BASE" || pull_base || make_base
  make_build
  have "$PROMETHEUS" || make_prometheus
  docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' 'tandem-ci/*'
}

have() { docker image inspect "$1" >/dev/null 2>&1; }

pull_base() {
  timeout 60 docker pull -q "$PYTHON" >/dev/null 2>&1 && docker tag "$PYTHON" "$BASE"
}

make_base() {
  local root
  command -v debootstrap >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
  }
  root=$(mktemp -d)
  debootstrap --variant=minbase \
    --include=ca-certificates,netbase,python3,python3-pip,python3-venv bookworm "$root" >/dev/null
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
    "$root"/usr/share/{doc,man,locale}/* "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
  ln -sf python3 "$root/usr/bin/python"
  tar -C "$root" -c . | docker import \
    -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    -c 'CMD ["python3"]' - "$BASE" >/dev/null
  rm -rf "$root"
}

# Certificates because a proxy may stand before the package index, wheels because pip may be told of
# a local folder of them.
make_build() {
  local context
  context=$(mktemp -d)
  mkdir "$context/wheels"
  cp /etc/ssl/certs/ca-certificates.crt "$context/"
  local_wheels | xargs -r cp -t "$context/wheels"
  cat >"$context/Dockerfile" <<DOCKERFILE
FROM $BASE
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY wheels /wheels
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_FIND_LINKS=/wheels PIP_ROOT_USER_ACTION=ignore
DOCKERFILE
  DOCKER_BUILDKIT=1 docker build -q -t "$BUILD" "$context" >/dev/null
  rm -rf "$context"
}

local_wheels() {
  local place
  for place in ${PIP_FIND_LINKS:-} \
    $(python3 -m pip config get global.find-links 2>/dev/null || true); do
    [ -d "$place" ] && find "$place" -maxdepth 1 -name '*.whl'
  done | sort -u
}

make_prometheus() {
  local context
  context=$(mktemp -d)
  cat >"$context/Dockerfile" <<DOCKERFILE
FROM $BASE
RUN apt-get update -qq \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus \\
 && rm -rf /var/lib/apt/lists/* && mkdir -p /prometheus && chown 65534:65534 /prometheus
USER 65534:65534
ENTRYPOINT ["/usr/bin/prometheus"]
DOCKERFILE
  DOCKER_BUILDKIT=1 docker build -q -t "$PROMETHEUS" "$context" >/dev/null
  rm -rf "$context"
}

main
