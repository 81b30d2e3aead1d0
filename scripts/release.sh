#!/usr/bin/env bash
# Puts what a release consists of into a folder: the binary, its bill of materials (CycloneDX), and
# their checksums. Tells the binary's size.
# Usage: release.sh BINARY FOLDER
set -euo pipefail

binary=$1 folder=$2

export PATH="$HOME/.cargo/bin:$PATH"
host=$(rustc -vV | sed -n 's/^host: //p')
name=$("$binary" --version | tr ' ' -)-$host
rm -rf "$folder"
mkdir -p "$folder"
cp "$binary" "$folder/$name"

# cargo-cyclonedx writes a file beside each Cargo.toml of the workspace; one is the binary's.
# The same commit gives the same file: its time is the commit's, and it holds no path of this
# machine.
part=tradewind-release-sbom
trap 'find . -name "$part.json" -not -path "./target/*" -delete' EXIT
time=$(git log -1 --format=%ct 2>/dev/null || date +%s)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$time} cargo cyclonedx --quiet --format json \
  --spec-version 1.5 --target "$host" --manifest-path crates/cli/Cargo.toml --override-filename $part
sed "s|path+file://$PWD/|path+file:///|g" crates/cli/$part.json >"$folder/$name.cdx.json"

(cd "$folder" && sha256sum "$name" "$name.cdx.json" >SHA256SUMS)
tenths=$(($(stat -c %s "$binary") / 100000))
echo "$folder: $name ($((tenths / 10)).$((tenths % 10)) MB), $name.cdx.json, SHA256SUMS"
