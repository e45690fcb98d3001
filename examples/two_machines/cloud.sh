#!/usr/bin/env bash
# The cloud's machine: the target model. Flags are the verifier's.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=credentials.sh
. "$(dirname "$0")/credentials.sh" "${CERTS:-certs}" cloud
exec tandem serve verifier --port "${PORT:-50051}" "$@"
