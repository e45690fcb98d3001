#!/usr/bin/env bash
# The chart in a real cluster of this machine: builds the images, installs both places, asks each component for its
# health and the suite a question, upgrades and rolls back, and removes everything.
#   deploy/k8s/try.sh kind       a cluster of its own in Docker, which goes again (the default)
#   deploy/k8s/try.sh k3s        the k3s that runs here
#   deploy/k8s/try.sh current    the cluster that kubectl talks to, which can pull the images
# Needs docker, kubectl, helm, curl and tandem (TANDEM=.venv/bin/tandem); kind for the first.
set -euo pipefail
cd "$(dirname "$0")/../.."

CLUSTER=${1:-kind}
NAME=tandem-try
NAMESPACE=tandem
CHART=deploy/k8s/tandem
TANDEM=${TANDEM:-tandem}
WAIT=${WAIT:-15m}
PROGRAMS=(verifier drafter retriever aggregator)

main() {
  case "$CLUSTER" in kind | k3s | current) ;; *)
    echo "$0: $CLUSTER: must be kind, k3s or current" >&2
    exit 2
    ;;
  esac
  work=$(mktemp -d)
  trap leave EXIT
  version=$(sed -n 's/^appVersion: "\(.*\)"/\1/p' "$CHART/Chart.yaml")
  open_cluster
  secrets
  install
  ask
  change_and_take_back
  echo "the chart works in $CLUSTER"
}

leave() {
  local code=$?
  [ -z "${forward:-}" ] || kill "$forward" 2>/dev/null || true
  if [ "$code" -ne 0 ]; then
    kubectl get pods --namespace "$NAMESPACE" || true
    kubectl logs --namespace "$NAMESPACE" --selector app.kubernetes.io/part-of=tandem --tail 5 --prefix || true
  fi
  if [ "$CLUSTER" = kind ]; then
    kind delete cluster --name "$NAME" || true
  else
    helm uninstall "$NAME" --namespace "$NAMESPACE" || true
  fi
  rm -rf "$work"
  exit "$code"
}

open_cluster() {
  local images=() program
  if [ "$CLUSTER" = kind ]; then
    kind create cluster --name "$NAME" --wait 180s
  elif [ "$CLUSTER" = k3s ]; then
    export KUBECONFIG=${KUBECONFIG:-/etc/rancher/k3s/k3s.yaml}
  fi
  [ "$CLUSTER" = current ] && return
  for program in "${PROGRAMS[@]}"; do
    docker build --quiet --file "services/$program/Dockerfile" --tag "tandem/$program:$version" \
      --build-arg MODELS=demo .
    images+=("tandem/$program:$version")
  done
  if [ "$CLUSTER" = kind ]; then
    kind load docker-image --name "$NAME" "${images[@]}"
  else
    docker save "${images[@]}" | k3s ctr images import -
  fi
}

# As the chart's README has them made.
secrets() {
  local certs=$work/certs names=() place of
  for of in cloud:verifier cloud:cloud-aggregator cloud:cloud-retriever edge:drafter edge:edge-aggregator edge:edge-retriever; do
    names+=("--${of%%:*}" "$NAME-${of#*:}.$NAMESPACE.svc")
  done
  "$TANDEM" certs --out "$certs" "${names[@]}" >/dev/null
  key=$("$TANDEM" keys caller --file "$certs/http-keys")
  kubectl get namespace "$NAMESPACE" >/dev/null 2>&1 || kubectl create namespace "$NAMESPACE"
  for place in cloud edge; do
    kubectl create secret generic "tandem-$place-tls" --namespace "$NAMESPACE" \
      --from-file=tls.crt="$certs/$place.crt" --from-file=tls.key="$certs/$place.key" --from-file="$certs/ca.crt"
    set -- --from-file=keys="$certs/$place.keys" --from-file=call-key="$certs/$place.call-key"
    [ "$place" = cloud ] || set -- "$@" --from-file=cloud-key="$certs/edge.cloud-key" --from-file="$certs/http-keys"
    kubectl create secret generic "tandem-$place-keys" --namespace "$NAMESPACE" "$@"
  done
}

VALUES=(
  --set security.cloud.tlsSecret=tandem-cloud-tls --set security.cloud.keysSecret=tandem-cloud-keys
  --set security.edge.tlsSecret=tandem-edge-tls --set security.edge.keysSecret=tandem-edge-keys
)

install() {
  helm install "$NAME" "$CHART" --namespace "$NAMESPACE" "${VALUES[@]}" --wait --timeout "$WAIT"
  helm test "$NAME" --namespace "$NAMESPACE"
}

ask() {
  local port=18000 answer
  kubectl port-forward --namespace "$NAMESPACE" "service/$NAME-edge-aggregator" "$port:8000" >/dev/null &
  forward=$!
  answer=$(curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 \
    -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d '{"model": "demo-target", "prompt": "A list is", "max_tokens": 20, "seed": 7}' \
    "http://127.0.0.1:$port/v1/completions")
  echo "$answer"
  grep -q '"finish_reason"' <<<"$answer"
}

change_and_take_back() {
  helm upgrade "$NAME" "$CHART" --namespace "$NAMESPACE" "${VALUES[@]}" --set logLevel=debug --wait --timeout "$WAIT"
  helm rollback "$NAME" 1 --namespace "$NAMESPACE" --wait --timeout "$WAIT"
  helm test "$NAME" --namespace "$NAMESPACE"
}

main
