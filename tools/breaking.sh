#!/usr/bin/env bash
# breaking.sh BUF [REPOSITORY]: refuses changes of protos/ that a peer of the last release would not
# understand (the rules are in protos/buf.yaml). The last release is the newest tag vX.Y.Z that HEAD
# descends from; before the first one nothing is promised, and this says so.
set -euo pipefail

buf=$1
repository=${2:-$(dirname "$0")/..}

release=$(git -C "$repository" describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || {
  echo "breaking: no release yet, nothing to compare with"
  exit 0
}
released=$(mktemp -d)
trap 'rm -rf "$released"' EXIT
git -C "$repository" archive "$release" protos | tar x -C "$released"
"$buf" breaking "$repository/protos" --against "$released/protos"
echo "breaking: protos/ is compatible with $release"
