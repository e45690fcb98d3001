#!/usr/bin/env bash
# Builds and starts the whole suite and waits until it is healthy. Arguments go to `docker compose up`.
# Where it fails, the last lines say which service or image is at fault and what to do.
set -euo pipefail
cd "$(dirname "$0")"

main() {
  local wrote
  wrote=$(mktemp)
  trap 'rm -f "$wrote"' RETURN
  docker compose up --build --detach --wait "$@" 2>&1 | tee "$wrote" && return
  explain "$wrote" >&2
  return 1
}

explain() {
  echo
  if ! docker version >/dev/null 2>&1; then
    echo "No Docker engine answers: start one, or see whether you may use it (docker version)."
  elif ! docker compose version >/dev/null 2>&1; then
    echo "This Docker has no Compose: install its plugin (docker-compose-plugin or docker-compose-v2)."
  elif grep -qE 'failed to resolve|pull access denied|manifest unknown|no such host|failed to do request' "$1"; then
    echo "An image cannot be pulled. Name images that this host has in deploy/.env: BASE_IMAGE and" \
      "BUILD_IMAGE (a Python 3.11), PROMETHEUS_IMAGE, GRAFANA_IMAGE; or leave the last two out with" \
      "COMPOSE_PROFILES=cpu,no-observability."
  fi
  docker compose ps --all --format '{{.Service}} {{.State}} {{.Health}} {{.ExitCode}}' 2>/dev/null |
    while read -r service state health code; do
      case "$state $health" in
        "running healthy" | "running 0" | "running ") continue ;;
        exited*) [ "${code:-$health}" = 0 ] && continue ;;
        created*) continue ;; # it waits for another
      esac
      echo "$service is $state${health:+ ($health)}. The end of its log:"
      docker compose logs --no-color --no-log-prefix --tail 5 "$service" | sed 's/^/  /'
    done
}

main "$@"
