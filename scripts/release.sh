#!/usr/bin/env bash
# Builds what a release consists of into TARGET_DIR/release-files: for each target a static binary,
# its bill of materials (CycloneDX) and the Debian package; and their checksums. Prints their sizes.
# Usage: release.sh TARGET_DIR TARGET..., the target that this machine can run first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$1"
target_dir=$(cd "$1" && pwd)
shift
folder=$target_dir/release-files
export CARGO_TARGET_DIR=$target_dir
export PATH="$HOME/.cargo/bin:$PATH"

# The same commit gives the same files: their time is the commit's, and they hold no path of this
# machine.
time=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$time}

# Zig is the C and C++ compiler for all targets, with the sources of musl for static programs.
tools=$target_dir/release-tools
wanted=$here/release.requirements.txt
if ! cmp --silent "$wanted" "$tools/requirements.txt"; then
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet -r "$wanted"
  cp "$wanted" "$tools/requirements.txt"
fi
export PATH="$tools/bin:$PATH"

# build TARGET: builds the binary, and checks that it needs no library of its host.
build() {
  rustup target add "$1"
  cargo zigbuild --locked --profile dist -p tradewind --target "$1"
  local binary=$target_dir/$1/dist/tradewind
  if readelf --dynamic "$binary" | grep NEEDED || readelf --program-headers "$binary" | grep INTERP; then
    echo "release: $binary is not static" >&2
    exit 1
  fi
}

# parts FOLDER: what the package holds beside the binary and files of the repository.
parts() {
  rm -rf "$1"
  "$binary" generate man "$1/man"
  gzip -9n "$1"/man/*
  local shell
  for shell in bash zsh fish; do "$binary" generate completions "$shell" >"$1/tradewind.$shell"; done
  local maintainer
  maintainer=$(sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/cli/Cargo.toml)
  printf 'tradewind (%s-1) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' "$version" \
    "See CHANGELOG.md in the repository." "$maintainer" \
    "$(LC_ALL=C date --utc --date "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')" |
    gzip -9n >"$1/changelog.Debian.gz"
}

# cargo-cyclonedx writes a file beside each Cargo.toml of the workspace; one is the binary's.
part=tradewind-release-sbom
trap 'find . -name "$part.json" -not -path "./target/*" -delete' EXIT
# bill TARGET FILE
bill() {
  cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$1" \
    --manifest-path crates/cli/Cargo.toml --override-filename $part
  sed "s|path+file://$PWD/|path+file:///|g" crates/cli/$part.json >"$2"
}

for target in "$@"; do build "$target"; done
binary=$target_dir/$1/dist/tradewind
version=$("$binary" --version | cut -d' ' -f2)
rm -rf "$folder"
mkdir -p "$folder"
for target in "$@"; do
  name=tradewind-$version-$target
  cp "$target_dir/$target/dist/tradewind" "$folder/$name"
  bill "$target" "$folder/$name.cdx.json"
  parts "$target_dir/$target/dist/package"
  cargo deb --quiet --locked --no-build --no-strip --profile dist --target "$target" -p tradewind \
    --output "$folder/"
done
(cd "$folder" && sha256sum -- * >"$target_dir/SHA256SUMS" && mv "$target_dir/SHA256SUMS" .)

echo "$folder:"
printf '\n| file | MB |\n|---|---|\n'
for file in "$folder"/*; do
  tenths=$((($(stat -c %s "$file") + 50000) / 100000))
  printf '| `%s` | %d.%d |\n' "$(basename "$file")" $((tenths / 10)) $((tenths % 10))
done
