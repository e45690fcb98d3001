#!/usr/bin/env bash
# The edge's machine: the draft model, and the aggregator that callers ask. Flags are the drafter's.
# Ends when one of the two does; a signal ends both.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=credentials.sh
. "$(dirname "$0")/credentials.sh" "${CERTS:-certs}" edge
drafter=127.0.0.1:${DRAFTER_PORT:-50052}
tandem serve drafter --port "${drafter#*:}" --verifier "${CLOUD:?HOST:PORT of the verifier}" "$@" &
tandem serve aggregator --port "${PORT:-50050}" --drafter "$drafter" \
  --http-port "${HTTP_PORT:-8000}" --http-keys-file "${CERTS:-certs}/http-keys" &
trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM
wait -n
