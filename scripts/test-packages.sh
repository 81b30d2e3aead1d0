#!/usr/bin/env bash
# Tries the Debian package that `make release` left: in a clean root (install, upgrade, remove,
# purge), and on two hosts that are set up by the lines of docs/how-to/packages.md.
# Says SKIPPED where a tool or a right is missing. Usage: test-packages.sh FOLDER, as root.
set -euo pipefail

folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
page=$here/../docs/how-to/packages.md
export PATH="$PATH:/usr/sbin:/sbin"
own=$(dpkg --print-architecture 2>/dev/null || true)
work=$(mktemp -d)

# shellcheck source=scripts/test-packages/roots.sh
. "$here/test-packages/roots.sh"
# shellcheck source=scripts/test-packages/hosts.sh
. "$here/test-packages/hosts.sh"

cleanup() {
  end_hosts
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

debian_package() {
  local package root=$work/root
  for package in "$folder"/*.deb; do
    if has lintian; then
      expect "lintian finds no error in $(basename "$package")" \
        lintian --allow-root --fail-on error --suppress-tags no-manual-page "$package"
    else skipped "lintian is not there"; fi
  done
  package=$(ls "$folder"/tradewind_*_"$own".deb)
  clean_root "$root" curl,iproute2 || return 0
  tree "$root" >"$work/before"
  cp "$package" "$root/tmp/1.deb"
  newer "$package" "$root/tmp/2.deb"
  local dpkg=(env LC_ALL=C chroot "$root" dpkg)
  expect "install" "${dpkg[@]}" --install /tmp/1.deb
  expect "the binary runs in the clean root" chroot "$root" tradewind --version
  expect "the user is there" chroot "$root" id tradewind
  expect "its folder is there" here_is "$root/var/lib/tradewind"
  local path
  for path in usr/share/man/man1/tradewind.1.gz usr/share/man/man1/tradewind-agent-join.1.gz \
    usr/share/bash-completion/completions/tradewind usr/share/zsh/vendor-completions/_tradewind \
    usr/share/fish/vendor_completions.d/tradewind.fish usr/lib/sysctl.d/60-tradewind.conf \
    usr/share/doc/tradewind/examples/relay.toml usr/share/tradewind/relay.toml; do
    expect "/$path" here_is "$root/$path"
  done
  if has systemd-analyze; then
    # On this host, which has what they wait for, but not the binary.
    mkdir "$work/units"
    cp "$root"/usr/lib/systemd/system/tradewind-*.service "$work/units/"
    sed -i 's#/usr/bin/tradewind#/bin/true#' "$work"/units/*
    expect "systemd takes the units" systemd-analyze --man=no verify "$work"/units/*
  else skipped "the units: no systemd-analyze"; fi
  echo "# mine" >>"$root/etc/tradewind/jumpstart.toml"
  chroot "$root" tradewind keygen identity /etc/tradewind/relay.key >/dev/null
  expect "upgrade" "${dpkg[@]}" --force-confold --install /tmp/2.deb
  chroot "$root" dpkg-query --show --showformat '${Version}\n' tradewind >"$work/version"
  expect "the newer version is in effect" grep -q '\.newer$' "$work/version"
  expect "an edited configuration outlives the upgrade" \
    grep -q '^# mine' "$root/etc/tradewind/jumpstart.toml"
  expect "remove" "${dpkg[@]}" --remove tradewind
  expect "the binary is gone" gone "$root/usr/bin/tradewind"
  expect "the configuration outlives the removal" \
    grep -q '^# mine' "$root/etc/tradewind/jumpstart.toml"
  expect "a key outlives the removal" here_is "$root/etc/tradewind/relay.key"
  expect "purge" "${dpkg[@]}" --purge tradewind
  rm "$root"/tmp/*.deb
  tree "$root" >"$work/after"
  expect "a purge leaves nothing" diff "$work/before" "$work/after"
}

expect "checksums" env --chdir "$folder" sha256sum --check --quiet SHA256SUMS
if [ "$(id -u)" != 0 ]; then skipped "the package and the hosts need root"
elif [ -z "$own" ]; then skipped "the package and the hosts: this is no Debian"
else
  debian_package
  two_hosts
fi
[ "$failures" = 0 ] || { echo "$failures failed"; exit 1; }
