#!/usr/bin/env bash
# vendor_page.sh: puts the libraries of the web page into tandem/gateway/page/vendor, with their licences.
# Browsers find a module by its address, so an import by a package's name becomes one by a file's. The
# maps that the files name are not served.
set -euo pipefail
cd "$(dirname "$0")/../tandem/gateway/page/vendor"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# fetch PACKAGE VERSION FILE...: files of the package, here by their last names
fetch() {
  local package=$1 version=$2 file
  shift 2
  npm pack --silent --pack-destination "$scratch" "$package@$version" >/dev/null
  mkdir "$scratch/$package"
  tar -xzf "$scratch/$package-$version.tgz" -C "$scratch/$package"
  for file in "$@"; do
    sed -e 's|from"preact"|from"./preact.mjs"|' -e '/^\/\/# sourceMappingURL=/d' \
      "$scratch/$package/package/$file" >"$(basename "$file")"
  done
  cp "$scratch/$package/package/LICENSE" "LICENSE.$package"
}

fetch preact 11.2.0 dist/preact.mjs hooks/dist/hooks.mjs
fetch htm 3.1.1 dist/htm.mjs
fetch markdown-it 14.3.3 dist/markdown-it.min.js
# Made for a page's scripts: in a module it leaves itself in `globalThis`.
{
  cat markdown-it.min.js
  echo 'export default globalThis.markdownit;'
} >markdown-it.mjs
rm markdown-it.min.js
