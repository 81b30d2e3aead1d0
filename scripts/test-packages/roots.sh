# What trials of the package share: words, clean Debian roots, trees, newer packages. Sourced by
# test-packages.sh and test-deploy.sh, with `folder` and `work` set.

failures=0

ok() { echo "ok: $*"; }
skipped() { echo "SKIPPED: $*"; }
failed() { echo "FAILED: $*"; failures=$((failures + 1)); }
# expect WORDS COMMAND ...: whether the command succeeds; tells its last words otherwise.
expect() {
  local words=$1; shift
  if "$@" >"$work/said" 2>&1; then ok "$words"; else failed "$words"; tail -n 20 "$work/said"; fi
}
has() { command -v "$1" >/dev/null; }
here_is() { [ -e "$1" ]; }
gone() { [ ! -e "$1" ]; }

# clean_root ROOT PACKAGES: a clean Debian with these packages (a,b): made once, kept beside the
# release's folder.
clean_root() {
  local kept=$folder/../debian-root-$2.tar
  if [ ! -e "$kept" ]; then
    has debootstrap || { skipped "a clean root: no debootstrap"; return 1; }
    debootstrap --variant=minbase --include="systemd-standalone-sysusers,$2" \
      bookworm "$work/made" >"$work/debootstrap.log" 2>&1 ||
      { skipped "a clean root: debootstrap: $(tail -n 1 "$work/debootstrap.log")"; return 1; }
    rm -f "$work/made"/var/cache/apt/archives/*.deb
    tar --one-file-system -C "$work/made" -cf "$kept.part" . && mv "$kept.part" "$kept"
    rm -rf "$work/made"
  fi
  mkdir "$1"
  tar -C "$1" -xpf "$kept"
}

# tree ROOT: each path with kind, mode, owner and content, but for what the package tools and the
# tools of accounts write of their own.
tree() {
  local theirs=(\( -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache
    -o -path ./var/log -o -path ./proc -o -path ./dev -o -path ./sys -o -path ./tmp
    -o -path './etc/*-' -o -path ./etc/.pwd.lock \) -prune)
  (cd "$1" &&
    find . -xdev "${theirs[@]}" -o -printf '%p %y %m %U:%G %l\n' &&
    find . -xdev "${theirs[@]}" -o -type f -exec sha256sum {} +) | sort
}

# newer PACKAGE FILE: the same with a higher version, and a configuration that has changed.
newer() {
  dpkg-deb --raw-extract "$1" "$work/newer"
  sed -i 's/^Version: .*/&.newer/' "$work/newer/DEBIAN/control"
  echo "# of the newer package" >>"$work/newer/etc/tradewind/jumpstart.toml"
  dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/newer" "$2" >/dev/null
}
