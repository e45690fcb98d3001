#!/usr/bin/env bash
# publish_release.sh FOLDER: uploads the release in FOLDER, which `make release-files` made. Each variable
# names a place; what has none is left out:
#
#   PACKAGE_INDEX=https://upload.pypi.org/legacy/   the wheel and the source distribution, by twine
#   IMAGE_REGISTRY=ghcr.io/tandem                   the images, as REGISTRY/NAME:TAG, which Docker has
#   CHART_REGISTRY=ghcr.io/tandem/charts            the Helm chart
#   GITHUB_RELEASE=yes                              all files, with the tag's text, by gh
#
# The programs log in as they do otherwise (twine's TWINE_USERNAME and so on). With DRY_RUN=yes the
# commands are printed and nothing is uploaded. Checksums are compared before anything else.
set -euo pipefail

folder=$(cd "${1:?usage: tools/publish_release.sh FOLDER}" && pwd)
(cd "$folder" && sha256sum --check --quiet --strict SHA256SUMS)
if [ -z "${PACKAGE_INDEX:-}${IMAGE_REGISTRY:-}${CHART_REGISTRY:-}${GITHUB_RELEASE:-}" ]; then
  echo "publish: set PACKAGE_INDEX, IMAGE_REGISTRY, CHART_REGISTRY or GITHUB_RELEASE" >&2
  exit 2
fi

run() {
  printf '%s\n' "$*"
  [ -n "${DRY_RUN:-}" ] || "$@"
}

distributions=("$folder"/*.whl "$folder"/*.tar.gz)
charts=("$folder"/tandem-*.tgz)
version=$(basename "${distributions[0]}" | cut -d- -f2)

if [ -n "${IMAGE_REGISTRY:-}" ]; then
  while read -r image _; do
    run docker tag "$image" "$IMAGE_REGISTRY/${image#*/}"
    run docker push "$IMAGE_REGISTRY/${image#*/}"
  done <"$folder/images.txt"
fi
if [ -n "${CHART_REGISTRY:-}" ]; then
  run helm push "${charts[0]}" "oci://$CHART_REGISTRY"
fi
if [ -n "${PACKAGE_INDEX:-}" ]; then
  run "${TWINE:-twine}" upload --non-interactive --repository-url "$PACKAGE_INDEX" "${distributions[@]}"
fi
if [ -n "${GITHUB_RELEASE:-}" ]; then
  run gh release create "v$version" --verify-tag --notes-from-tag "${distributions[@]}" "${charts[0]}" \
    "$folder/images.txt" "$folder/sbom.json" "$folder/SHA256SUMS"
fi
