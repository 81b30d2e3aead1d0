#!/usr/bin/env bash
# Attacks the controller's API as its OpenAPI document describes it (schemathesis, pinned):
# scripts/fuzz-api.sh TRADEWIND FOLDER. Its Python packages are installed in FOLDER.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tradewind=$1
folder=$2

wanted=$here/fuzz-api.requirements.txt
installed=$folder/venv/requirements.txt
if ! cmp --silent "$wanted" "$installed"; then
  rm -rf "$folder/venv"
  mkdir -p "$folder"
  if ! python3 -m venv "$folder/venv" || ! "$folder/venv/bin/pip" install --quiet -r "$wanted"; then
    echo "SKIPPED: fuzz-api needs Python with venv, and its packages (scripts/fuzz-api.requirements.txt)"
    exit 0
  fi
  cp "$wanted" "$installed"
fi
exec "$folder/venv/bin/python" "$here/fuzz_api.py" "$tradewind" "$folder"
