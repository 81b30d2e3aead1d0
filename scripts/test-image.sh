#!/usr/bin/env bash
# Tries the container image of this machine's architecture that `make image` left: it holds one
# file, and a relay and a gateway run from it by its numeric user, on a read-only root, and carry a
# file. Says SKIPPED where a right is missing. Usage: test-image.sh FOLDER, as root.
set -euo pipefail

if [ "${IN_NAMESPACE:-}" != yes ]; then
  if ! unshare --mount --net true 2>/dev/null; then
    echo "test-image: SKIPPED: namespaces need root"
    exit 0
  fi
  IN_NAMESPACE=yes exec unshare --mount --net "$0" "$@"
fi
ip link set lo up

folder=$(cd "$1" && pwd)
work=$(mktemp -d)
failed=0
pids=()
cleanup() {
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  umount --recursive "$work/root" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

check() {
  local what=$1; shift
  if "$@"; then echo "test-image: $what: pass"; else
    echo "test-image: $what: FAIL" >&2
    failed=1
  fi
}

case $(uname -m) in x86_64) own=amd64 ;; aarch64) own=arm64 ;; *) own=none ;; esac
image=$(ls "$folder"/tradewind-*-"$own".oci.tar)
mkdir "$work/oci" "$work/root" "$work/volume"
tar -xf "$image" -C "$work/oci"
# The configuration and the layers, by the index and the manifest.
blob() { echo "$work/oci/blobs/${1/://}"; }
read_json() { python3 -c "import json,sys; d=json.load(open(sys.argv[1])); print(eval(sys.argv[2]))" "$@"; }
manifest=$(blob "$(read_json "$work/oci/index.json" 'd["manifests"][0]["digest"]')")
config=$(blob "$(read_json "$manifest" 'd["config"]["digest"]')")
user=$(read_json "$config" 'd["config"]["User"]')
entry=$(read_json "$config" 'd["config"]["Entrypoint"][0]')
for layer in $(read_json "$manifest" '" ".join(l["digest"] for l in d["layers"])'); do
  tar -xf "$(blob "$layer")" -C "$work/root"
done
check "its user is a number, and not root" grep -Eqx '[1-9][0-9]*:[1-9][0-9]*' <<<"$user"
check "it holds its entry point alone" \
  test "$(cd "$work/root" && find . -type f -o -type l)" = ".$entry"
check "it is below 30 MB" test "$(stat -c %s "$image")" -lt 30000000

mkdir "$work/root/volume"
chown "$user" "$work/volume"
mount --bind "$work/root" "$work/root"
mount --bind "$work/volume" "$work/root/volume"
mount -o remount,bind,ro "$work/root"
run=(chroot "--userspec=$user" "$work/root" "$entry")
check "its root is read-only" bash -c "! touch $work/root/file 2>/dev/null"

relay=$("${run[@]}" keygen identity /volume/relay.key)
operator=$("${run[@]}" keygen operator /volume/operator.key)
gateway=$("${run[@]}" keygen identity /volume/gateway.key)

# The server is another host: relays do not dial their own.
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip netns add far
ip link add near type veth peer name far netns far
ip address add 198.51.100.1/24 dev near
ip link set near up
ip -n far address add 198.51.100.2/24 dev far
ip -n far link set far up
mkdir "$work/www"
head -c 1000000 /dev/urandom >"$work/www/file"
ip netns exec far python3 -m http.server 80 --directory "$work/www" >"$work/server.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
  curl --silent --output /dev/null http://198.51.100.2/ && break
  sleep 0.1
done

rules='destinations = ["198.51.100.0/24:80"]'
cat >"$work/volume/grant.toml" <<TOML
gateway = "$gateway"
$rules
relays = "any"
expires = "1 h"
TOML
grant=$("${run[@]}" grant issue --key /volume/operator.key /volume/grant.toml)
cat >"$work/volume/relay.toml" <<TOML
listen = ["127.0.0.1:7000"]
identity_file = "/volume/relay.key"
operators = ["$operator"]
[policy]
$rules
TOML
cat >"$work/volume/gateway.toml" <<TOML
identity_file = "/volume/gateway.key"
grant = "$grant"
socks5 = ["127.0.0.1:1080"]
[routes]
default = ["relay"]
[[routes.relay]]
name = "relay"
address = "127.0.0.1:7000"
identity = "$relay"
TOML
for program in relay gateway; do
  "${run[@]}" "$program" --config "/volume/$program.toml" >"$work/$program.log" 2>&1 &
  pids+=($!)
  for _ in $(seq 100); do
    grep -q ready "$work/$program.log" && break
    sleep 0.1
  done
  check "$program runs as $user" \
    test -n "$(pgrep --euid "${user%:*}" --full "$program --config")"
done
curl --silent --max-time 20 --proxy socks5h://127.0.0.1:1080 --output "$work/got" \
  http://198.51.100.2/file || true
check "a file came over the relay" cmp --silent "$work/www/file" "$work/got"
[ "$failed" = 0 ] || cat "$work/relay.log" "$work/gateway.log" >&2
exit "$failed"
