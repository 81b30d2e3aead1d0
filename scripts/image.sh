#!/usr/bin/env bash
# Packs the static binaries that `make release` left as container images, one OCI archive for each
# architecture, beside them; adds their checksums, and prints their sizes. No image is downloaded.
# Usage: image.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without a daemon, and without rights beyond those of a user who may write to FOLDER.
build=(buildah --root "$work/root" --runroot "$work/run" --storage-driver vfs)
cd "$folder"
rm -f ./*.oci.tar
shopt -s nullglob
for binary in tradewind-*-unknown-linux-musl; do
  case $binary in
    *-x86_64-*) architecture=amd64 ;;
    *-aarch64-*) architecture=arm64 ;;
    *) continue ;;
  esac
  version=${binary#tradewind-}
  version=${version%-*-unknown-linux-musl}
  image=tradewind-$version-$architecture.oci.tar
  # The same binary gives an image of the same digest.
  "${build[@]}" build --quiet --isolation chroot --timestamp "$(stat -c %Y "$binary")" \
    --arch "$architecture" --build-arg "BINARY=$binary" --file "$here/../deploy/Containerfile" \
    --tag "tradewind:$version-$architecture" . >/dev/null
  "${build[@]}" push --quiet "tradewind:$version-$architecture" \
    "oci-archive:$image:tradewind:$version"
done
images=(*.oci.tar)
if [ ${#images[@]} = 0 ]; then
  echo "image: $folder has no static binary: run \`make release\` first" >&2
  exit 1
fi
sha256sum -- * | grep -v ' SHA256SUMS$' >"$work/SHA256SUMS"
cp "$work/SHA256SUMS" SHA256SUMS
printf '\n| image | MB |\n|---|---|\n'
for image in "${images[@]}"; do
  tenths=$((($(stat -c %s "$image") + 50000) / 100000))
  printf '| `%s` | %d.%d |\n' "$image" $((tenths / 10)) $((tenths % 10))
done
