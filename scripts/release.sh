#!/usr/bin/env bash
# Puts what a release consists of into TARGET_DIR/release-files: the binary, its bill of materials
# (CycloneDX), the Debian package, and their checksums. Prints their sizes.
# Usage: release.sh TARGET_DIR, with the binary in TARGET_DIR/dist.
set -euo pipefail

target_dir=$(cd "$1" && pwd)
folder=$target_dir/release-files
binary=$target_dir/dist/tradewind
export CARGO_TARGET_DIR=$target_dir
export PATH="$HOME/.cargo/bin:$PATH"

# The same commit gives the same files: their time is the commit's, and they hold no path of this
# machine.
time=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$time}
host=$(rustc -vV | sed -n 's/^host: //p')
name=$("$binary" --version | tr ' ' -)-$host
version=$("$binary" --version | cut -d' ' -f2)

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
bill() {
  cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$host" \
    --manifest-path crates/cli/Cargo.toml --override-filename $part
  sed "s|path+file://$PWD/|path+file:///|g" crates/cli/$part.json >"$1"
}

rm -rf "$folder"
mkdir -p "$folder"
cp "$binary" "$folder/$name"
bill "$folder/$name.cdx.json"
parts "$target_dir/dist/package"
cargo deb --quiet --locked --no-build --no-strip --profile dist -p tradewind --output "$folder/"
(cd "$folder" && sha256sum -- * >"$target_dir/SHA256SUMS" && mv "$target_dir/SHA256SUMS" .)

echo "$folder:"
printf '\n| file | MB |\n|---|---|\n'
for file in "$folder"/*; do
  tenths=$((($(stat -c %s "$file") + 50000) / 100000))
  printf '| `%s` | %d.%d |\n' "$(basename "$file")" $((tenths / 10)) $((tenths % 10))
done
