#!/usr/bin/env bash
# Tries `tradewind deploy` with the Debian package that `make release` left, on eleven hosts: a
# network namespace and a clean Debian root with a real sshd each. Eight are fit, two unreachable,
# one gives no rights. Says SKIPPED where a tool or a right is missing.
# Usage: test-deploy.sh FOLDER, as root.
#
#   operator, controller 1.2.3.1 ---- bridge ---- h1 1.2.3.11 ... h11 1.2.3.21
set -euo pipefail

folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$PATH:/usr/sbin:/sbin"
own=$(dpkg --print-architecture 2>/dev/null || true)
work=$(mktemp -d)

# shellcheck source=scripts/test-packages/roots.sh
. "$here/test-packages/roots.sh"

operator=tw-$$-operator
started=()
cleanup() {
  local each
  for each in "${started[@]}"; do
    # `unshare` takes no other signal; its namespaces end with it.
    kill -KILL "$each" 2>/dev/null || true
    wait "$each" 2>/dev/null || true
  done
  for each in $(ip netns list | grep -o "^tw-$$-[a-z0-9]*"); do ip netns delete "$each"; done
  for each in "$work"/h*/root "$work"; do
    if mountpoint -q "$each"; then umount --lazy "$each"; fi
  done
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

network() {
  local number
  ip netns add "$operator"
  ip -n "$operator" link set lo up
  ip -n "$operator" link add bridge type bridge
  ip -n "$operator" address add 1.2.3.1/24 dev bridge
  ip -n "$operator" link set bridge up
  for number in $(seq 11); do
    ip netns add "tw-$$-h$number"
    ip -n "tw-$$-h$number" link set lo up
    ip -n "$operator" link add "h$number" type veth peer name wan netns "tw-$$-h$number"
    ip -n "$operator" link set "h$number" master bridge up
    ip -n "tw-$$-h$number" address add "1.2.3.$((10 + number))/24" dev wan
    ip -n "tw-$$-h$number" link set wan up
  done
  # Nobody answers there.
  ip -n "tw-$$-h9" link set wan down
}

# The root that all hosts share, with the users that come by ssh.
base() {
  clean_root "$work/base" openssh-server,sudo || return 1
  ssh-keygen -q -t ed25519 -N "" -f "$work/key"
  chroot "$work/base" useradd --create-home --password '*' deployer
  chroot "$work/base" useradd --create-home --password '*' guest
  echo "deployer ALL=(ALL) NOPASSWD: ALL" >"$work/base/etc/sudoers.d/deployer"
  local home
  for home in root home/deployer home/guest; do
    install -d -m 700 "$work/base/$home/.ssh"
    install -m 600 "$work/key.pub" "$work/base/$home/.ssh/authorized_keys"
  done
  chroot "$work/base" chown -R deployer:deployer /home/deployer
  chroot "$work/base" chown -R guest:guest /home/guest
  tree "$work/base" >"$work/before"
  local key
  key=$(cut -d' ' -f1,2 "$work/base/etc/ssh/ssh_host_ed25519_key.pub")
  seq 11 21 | sed "s|.*|1.2.3.& $key|" >"$work/known_hosts"
  cat >"$work/ssh_config" <<END
IdentityFile $work/key
IdentitiesOnly yes
UserKnownHostsFile $work/known_hosts
GlobalKnownHostsFile /dev/null
HostKeyAlgorithms ssh-ed25519
END
}

# sshd_on NAME: sshd in the host's root, in namespaces that end with it.
sshd_on() {
  local root=$work/$1/root
  mkdir -p "$root" "$work/$1/upper" "$work/$1/work"
  mount -t overlay overlay -o \
    "lowerdir=$work/base,upperdir=$work/$1/upper,workdir=$work/$1/work" "$root"
  ip netns exec "tw-$$-$1" unshare --pid --fork --kill-child sh -c "
    mount -t proc proc '$root/proc' && mount --rbind /dev '$root/dev' &&
    mount -t tmpfs tmpfs '$root/run' && mkdir '$root/run/sshd' &&
    exec chroot '$root' /usr/sbin/sshd -D -e" 2>"$work/$1/sshd.log" &
  started+=($!)
}

# hosts_file FILE PACKAGE: h1 to h7 get the package, h8 the program alone.
hosts_file() {
  local number
  cat >"$1" <<END
[defaults]
package = "$2"
sudo = true
ssh_options = ["-F", "$work/ssh_config"]
start = """setsid setpriv --reuid tradewind --regid tradewind --clear-groups \\
  /usr/bin/tradewind agent run >/run/agent.log 2>&1 & echo \$! >/run/agent.pid"""
stop = "kill \$(cat /run/agent.pid)"
END
  for number in $(seq 11); do
    local user=deployer place='role = "relay"' more='region = "gcp:europe-north1"'
    case $number in
      1) place='role = "gateway"' more='site = "office"' ;;
      2) more+=$'\n'"ceiling = \"$work/ceiling.toml\"" ;;
      8) user=root more+=$'\n'"sudo = false"$'\n'"package = \"$work/tradewind\"" ;;
      11) user=guest ;;
    esac
    printf '[[host]]\nname = "h%s"\nssh = "%s@1.2.3.%s"\n%s\n%s\n' \
      "$number" "$user" $((10 + number)) "$place" "$more" >>"$1"
  done
}

# tradewind ARGUMENT ...: on the operator's host.
tradewind() {
  ip netns exec "$operator" "$work/tradewind" "$@"
}
# deploy NAME ARGUMENT ...: keeps what it prints as $work/NAME.json and $work/NAME.err.
deploy() {
  local name=$1 code=0; shift
  tradewind deploy "$@" --controller "$work/net" -o json >"$work/$name.json" 2>"$work/$name.err" ||
    code=$?
  echo $code >"$work/$name.code"
  python3 - "$work/$name.json" >"$work/$name.said" <<'END'
import json, sys
for host in json.load(open(sys.argv[1]))["hosts"]:
    print(host["host"], host["outcome"], host["reason"] or "-")
END
}
# answered NAME CODE LINE ...: whether that was the exit code and the outcome of each host.
answered() {
  local name=$1 code=$2; shift 2
  printf '%s\n' "$@" >"$work/expected"
  diff "$work/expected" "$work/$name.said" && [ "$(cat "$work/$name.code")" = "$code" ] ||
    { cat "$work/$name.err" "$work/$name.json"; return 1; }
}
each() { local host; for host in $1; do echo "$host $2"; done; }
fit="h1 h2 h3 h4 h5 h6 h7 h8"
lost=("h9 failed unreachable" "h10 failed unreachable" "h11 failed no-rights")

# written HOST ...: all that the hosts have written since their roots were made.
written() {
  local host
  for host in "$@"; do
    (cd "$work/$host/upper" && find . -printf "$host %p %y %m %U:%G %s %T@\n" &&
      find . -type f -exec sha256sum {} +) | grep -v ' ./var/log' | sort
  done
}
audit() { tradewind events --controller "$work/net" -o json; }
states() {
  tradewind hosts --controller "$work/net" -o csv | python3 -c '
import csv, sys
print(*sorted(row["state"] for row in csv.DictReader(sys.stdin)))'
}
# eight STATE: whether the controller says so of all eight, within twenty seconds: documents change
# once more when others join.
eight() {
  local left=40
  until [ "$(states)" = "$1 $1 $1 $1 $1 $1 $1 $1" ]; do
    left=$((left - 1))
    [ $left -gt 0 ] || { tradewind hosts --controller "$work/net"; return 1; }
    sleep 0.5
  done
}
version() {
  chroot "$work/$1/root" dpkg-query --show --showformat '${Version}' tradewind
}
# in_turn: whether each host's upgrade began after the agent of the host before was heard.
in_turn() {
  grep -oE '^h[0-9]+: (installs|the controller hears)' "$work/upgrade.err" >"$work/turns"
  local host
  for host in h1 h2 h3 h4 h5 h6 h7; do
    printf '%s: installs\n%s: the controller hears\n' $host $host
  done | diff - "$work/turns"
}
# as_before HOST ...: whether nothing is left on the hosts.
as_before() {
  local host
  for host in "$@"; do
    tree "$work/$host/root" | diff "$work/before" - || return 1
    gone "$work/$host/root/var/cache/tradewind" || return 1
  done
}

first_deployment() {
  local hosts=$work/hosts.toml
  hosts_file "$hosts" "$1"
  deploy dry "$hosts" --dry-run
  mapfile -t lines < <(each "$fit" "would-change -")
  expect "a dry run tells what would be done" answered dry 1 "${lines[@]}" "${lost[@]}"
  expect "and does nothing" as_before h1 h8
  deploy first "$hosts"
  mapfile -t lines < <(each "$fit" "done -")
  expect "eight hosts are done, three told why" answered first 1 "${lines[@]}" "${lost[@]}"
  expect "the controller hears eight" eight well
  expect "no invite is shown" bash -c "! grep -h twinvite $work/first.*"
  expect "the ceiling is there" \
    cmp "$work/ceiling.toml" "$work/h2/root/var/lib/tradewind/agent/ceiling.toml"
  # What the agents of early hosts are told of later ones.
  sleep 10
  # shellcheck disable=SC2086
  written $fit >"$work/written"
  audit >"$work/audit"
  deploy again "$hosts"
  mapfile -t lines < <(each "$fit" "unchanged -")
  expect "the second run changes nothing" answered again 1 "${lines[@]}" "${lost[@]}"
  # shellcheck disable=SC2086
  written $fit >"$work/written-again"
  expect "no byte on the hosts" diff "$work/written" "$work/written-again"
  audit >"$work/audit-again"
  expect "nothing at the controller" diff "$work/audit" "$work/audit-again"
}

upgrades() {
  local hosts=$work/hosts.toml before
  before=$(version h1)
  hosts_file "$hosts" "$2"
  written h2 h3 h4 h5 h6 h7 h8 >"$work/written"
  deploy broken "$hosts"
  mapfile -t lines < <(each "h1" "failed package-refused"; each "h2 h3 h4 h5 h6 h7" "not-tried -")
  expect "a package that fails is tried once" \
    answered broken 1 "${lines[@]}" "h8 unchanged -" "${lost[@]}"
  expect "the host has the package from before" test "$(version h1)" = "$before"
  written h2 h3 h4 h5 h6 h7 h8 >"$work/written-again"
  expect "no other is touched" diff "$work/written" "$work/written-again"
  hosts_file "$hosts" "$1"
  deploy upgrade "$hosts"
  mapfile -t lines < <(each "h1 h2 h3 h4 h5 h6 h7" "done -")
  expect "the next package is installed" \
    answered upgrade 1 "${lines[@]}" "h8 unchanged -" "${lost[@]}"
  expect "one host after the other" in_turn
  expect "the newer version is there" test "$(version h7)" = "$before.newer"
  expect "the controller hears all" eight well
}

# A host that does not reach the controller is left as it was.
cut_off() {
  sshd_on h10
  ip netns exec "$operator" nft -f - <<'END'
table inet cut {
  chain input {
    type filter hook input priority 0;
    ip saddr 1.2.3.20 tcp dport 7440 reject with tcp reset
  }
}
END
  sleep 1
  deploy cut "$work/hosts.toml" h10
  expect "a host that does not reach the controller is told" \
    answered cut 1 "h10 failed controller-unreachable"
  expect "and left as it was" as_before h10
  sed -i '/^1.2.3.20 /d' "$work/known_hosts"
  deploy unknown "$work/hosts.toml" h10
  expect "an unknown host key is refused" answered unknown 1 "h10 failed host-key"
}

removal() {
  # shellcheck disable=SC2086
  deploy removed "$work/hosts.toml" --remove $fit
  mapfile -t lines < <(each "$fit" "done -")
  expect "all are removed" answered removed 0 "${lines[@]}"
  # shellcheck disable=SC2086
  expect "nothing is left" as_before $fit
  expect "the controller trusts none" eight revoked
  # shellcheck disable=SC2086
  deploy gone "$work/hosts.toml" --remove $fit
  mapfile -t lines < <(each "$fit" "unchanged -")
  expect "the second removal changes nothing" answered gone 0 "${lines[@]}"
}

deployment() {
  local package number
  package=$(ls "$folder"/tradewind_*_"$own".deb)
  # An overlay cannot have its upper half on every file system.
  mount -t tmpfs tmpfs "$work"
  newer "$package" "$work/newer.deb"
  sed -i 's/^Version: .*/&.broken/' "$work/newer/DEBIAN/control"
  printf '#!/bin/sh\n[ "$1" != configure ]\n' >"$work/newer/DEBIAN/postinst"
  dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/newer" "$work/broken.deb" >/dev/null
  cp "$work/newer/usr/bin/tradewind" "$work/tradewind"
  rm -rf "$work/newer"
  printf 'roles = ["relay"]\ndestinations = ["1.2.3.0/24:*"]\nnext_hops = []\n' \
    >"$work/ceiling.toml"
  base || return 0
  network
  for number in 1 2 3 4 5 6 7 8 11; do sshd_on "h$number"; done
  tradewind controller init "$work/net" --advertise 1.2.3.1:7440 >/dev/null
  ip netns exec "$operator" "$work/tradewind" controller run "$work/net" \
    >"$work/controller.out" 2>"$work/controller.err" &
  started+=($!)
  for number in $(seq 100); do [ -s "$work/controller.out" ] && break; sleep 0.1; done
  first_deployment "$package"
  upgrades "$work/newer.deb" "$work/broken.deb"
  cut_off
  removal
}

if [ "$(id -u)" != 0 ]; then skipped "hosts by ssh need root"
elif [ -z "$own" ]; then skipped "hosts by ssh: this is no Debian"
elif ! has ip || ! has ssh || ! has python3; then skipped "hosts by ssh: no ip, ssh or python3"
else deployment
fi
[ "$failures" = 0 ] || { echo "$failures failed"; exit 1; }
