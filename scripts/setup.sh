#!/usr/bin/env bash
# Installs what is missing, and only that, for one purpose: build, test, web, test-web, docs, lint,
# release, image, test-image, test-packages, test-deploy, bench or fuzz.
# Says what it installs; says nothing when all is there.
set -euo pipefail

purpose=${1:-build}
export PATH="$HOME/.cargo/bin:$PATH"

say() { echo "setup: $*" >&2; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else say "need root to run: $*"; exit 1
  fi
}

# without_services COMMAND ...: runs it as root while Debian starts no services that packages bring: benches start their own.
without_services() {
  local policy=/usr/sbin/policy-rc.d status=0
  [ -e "$policy" ] && { as_root "$@"; return; }
  as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
  as_root "$@" || status=$?
  as_root rm -f "$policy"
  return "$status"
}

# packages WHAT PACKAGE ...: installs the packages, because WHAT is missing.
packages() {
  local what=$1; shift
  command -v apt-get >/dev/null || { say "$what is missing and this is no Debian: install it (Debian calls it $*)"; exit 1; }
  say "installing Debian packages: $*"
  as_root apt-get update -qq
  without_services env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# debian COMMAND PACKAGE ...: installs the packages unless the command is there.
debian() {
  local command=$1; shift
  command -v "$command" >/dev/null || [ -x "/usr/sbin/$command" ] || [ -x "/sbin/$command" ] || packages "$command" "$@"
}

# cargo_tool COMMAND CRATE [OPTION ...]: builds a tool with these options of `cargo install`, unless
# it is there.
cargo_tool() {
  local command=$1 crate=$2; shift 2
  command -v "$command" >/dev/null && return 0
  say "building $crate with cargo"
  cargo install --quiet --locked "$@" "$crate"
}

# The book's tool, without its server and watcher, which take time to build.
book() { cargo_tool mdbook mdbook --version 0.5.4 --no-default-features --features search; }

rust() {
  if ! command -v cargo >/dev/null; then
    debian curl curl ca-certificates
    say "installing Rust by rustup into ~/.cargo"
    curl --proto '=https' --tlsv1.2 -sSf https://static.rust-lang.org/rustup/rustup-init.sh | sh -s -- -y --quiet --profile minimal --default-toolchain none >/dev/null
  fi
  # rust-toolchain.toml names the version; asking for it installs it.
  local wanted found
  wanted=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
  found=$(rustc --version 2>/dev/null | cut -d' ' -f2 || true)
  case $found in "$wanted" | "$wanted".*) return 0 ;; esac
  command -v rustup >/dev/null || { say "Rust ${found:-is missing,} is not the $wanted of rust-toolchain.toml: install rustup (https://rustup.rs), or that version"; exit 1; }
  say "installing the Rust toolchain named in rust-toolchain.toml"
  rustup toolchain install
}

# HiGHS, the planner's exact solver, is C++ built by CMake; bindgen reads its headers by libclang.
highs() {
  debian cmake cmake
  # Some of these places do not exist, which is no failure.
  local found
  found=$(find /usr/lib /usr/lib64 -name 'libclang*.so*' 2>/dev/null | grep -E '/libclang[-.0-9]*\.so' || true)
  [ -n "$found" ] && return 0
  # Whoever has it elsewhere tells bindgen so.
  [ -n "${LIBCLANG_PATH:-}" ] && return 0
  packages libclang libclang-dev
}

debian cc build-essential
debian kill procps
debian ip iproute2
# The programs of bpf/ are C, compiled for the kernel's virtual machine; they read the kernel's headers.
debian clang clang linux-libc-dev
debian curl curl ca-certificates
debian nft nftables
highs
rust

# Prometheus and its linter, for the tests of metrics: Debian's, unpacked into the target folder, where
# no service of it starts. Those tests are skipped where it cannot be had.
metrics_tools() {
  command -v prometheus >/dev/null && command -v promtool >/dev/null && return 0
  local tools=${CARGO_TARGET_DIR:-target}/tools/prometheus folder
  [ -x "$tools/usr/bin/promtool" ] && return 0
  say "unpacking Debian's Prometheus into $tools"
  mkdir -p "$tools"
  folder=$(mktemp -d)
  # Whoever fetches may be a user of apt's own.
  chmod 755 "$folder"
  ( cd "$folder"
    apt-get download -qq prometheus || { as_root apt-get update -qq && apt-get download -qq prometheus; }
    dpkg-deb -x prometheus_*.deb unpacked ) >/dev/null 2>&1 &&
    cp -R "$folder/unpacked/usr" "$tools/" && "$tools/usr/bin/promtool" --version >/dev/null 2>&1 ||
    { rm -rf "$tools"; say "Prometheus cannot be had: the tests with it are skipped"; }
  rm -rf "$folder"
}

# The dashboard's tools are npm packages, which `npm ci` fetches.
node() {
  debian node nodejs
  debian npm npm
}

# The tests in Chromium need a newer Node than the build.
newer_node() {
  local found
  found=$(command node --version)
  [ "$(echo "${found#v}" | cut -d. -f1)" -ge 20 ] || { say "Node $found is too old for playwright-core: install 20 or newer (https://nodejs.org)"; exit 1; }
}

case $purpose in
  build) ;;
  test) metrics_tools ;;
  web) node ;;
  test-web)
    node
    newer_node
    debian python3 python3
    debian chromium chromium fonts-dejavu-core ;;
  docs) book ;;
  lint)
    cargo_tool cargo-deny cargo-deny
    book ;;
  release)
    python3 -c 'import ensurepip' 2>/dev/null || packages "Python's venv" python3 python3-venv
    cargo_tool cargo-cyclonedx cargo-cyclonedx --version 0.5.9
    cargo_tool cargo-deb cargo-deb --version 3.8.0 ;;
  image)
    debian buildah buildah ;;
  test-image)
    debian python3 python3 ;;
  test-packages)
    debian debootstrap debootstrap
    debian lintian lintian
    debian python3 python3 ;;
  test-deploy)
    debian debootstrap debootstrap
    debian ssh openssh-client
    debian python3 python3 ;;
  bench)
    debian haproxy haproxy
    # The experiment jq-video: a real video, and SRT to compare with.
    debian ffmpeg ffmpeg
    debian srt-live-transmit srt-tools
    # jq-tcp has kcptun beside packet services.
    debian kcptun-client kcptun
    # jq-scale has the usual TURN server beside our relay.
    debian turnserver coturn
    [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || packages "nginx's module stream" nginx libnginx-mod-stream ;;
  fuzz)
    rustup toolchain list | grep -q nightly || { say "installing nightly Rust"; rustup toolchain install nightly --profile minimal; }
    cargo_tool cargo-fuzz cargo-fuzz ;;
  *) say "unknown purpose '$purpose': build, test, web, test-web, docs, lint, release, image, test-image, test-packages, test-deploy, bench or fuzz"; exit 2 ;;
esac
