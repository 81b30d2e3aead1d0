#!/usr/bin/env bash
# Asserts the lab's figures: ends with 0 (pass), 1 (fail) or 3 (invalid: the machine was too busy to
# keep time in three attempts), and leaves that word in $TARGET_DIR/test-lab.verdict.
set -uo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=${TARGET_DIR:-${CARGO_TARGET_DIR:-target}}
verdict="$target/test-lab.verdict"
mkdir -p "$target"
rm -f "$verdict"

CARGO_TARGET_DIR=$target "$cargo" build --locked --release --quiet -p tradewind-lab --example fidelity || exit 1
"$target/release/examples/fidelity" "$@"
code=$?
case $code in
  0) word=pass ;;
  3) word=invalid ;;
  *) word=fail; code=1 ;;
esac
echo "$word" > "$verdict"
echo "test-lab: $word"
exit $code
