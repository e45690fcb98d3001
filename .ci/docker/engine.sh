#!/usr/bin/env bash
# A Docker engine that answers, with the compose and buildx plugins: installs and starts what is
# missing on Debian. Fails, with the engine's own words, where none can be started.
set -euo pipefail

main() {
  docker version >/dev/null 2>&1 || start_engine
  if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
    install_plugins
  fi
  docker version --format 'docker {{.Server.Version}}'
  docker compose version
}

start_engine() {
  command -v dockerd >/dev/null || install docker.io iptables
  local log=${TMPDIR:-/tmp}/tandem-dockerd.log
  detached dockerd >"$log" 2>&1 </dev/null &
  for _ in $(seq 60); do
    docker version >/dev/null 2>&1 && return
    sleep 1
  done
  echo "the Docker engine did not start; the end of $log:" >&2
  tail -n 20 "$log" >&2
  exit 1
}

# The command without what this script inherited: an engine that keeps a caller's pipe or lock open
# keeps the caller waiting for as long as it runs.
detached() {
  local open
  for open in /proc/self/fd/*; do
    open=${open##*/}
    [ "$open" -le 2 ] || eval "exec $open>&-"
  done
  exec nohup "$@"
}

install() {
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: $*; install them and run this again" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Both plugins as Debian 13 packages them (Debian 12 has none), without changing what apt installs
# from: the lists live in a folder of their own.
install_plugins() {
  local work mirror folder
  work=$(mktemp -d)
  mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
  mkdir -p "$work"/lists/partial "$work"/cache/archives/partial
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
    "${mirror:-http://deb.debian.org/debian} trixie main" >"$work/sources.list"
  cat >"$work/apt.conf" <<CONFIG
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
CONFIG
  export APT_CONFIG="$work/apt.conf"
  apt-get -qq update
  (cd "$work" && apt-get -qq download docker-compose docker-buildx)
  unset APT_CONFIG
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
  folder=${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins
  mkdir -p "$folder"
  install_files "$folder" "$work"/unpacked/usr/libexec/docker/cli-plugins/*
  rm -rf "$work"
}

install_files() {
  local folder=$1
  shift
  command install -m 755 "$@" "$folder"
}

main
