# The ten lines of docs/how-to/packages.md, typed into two clean hosts: a root of Debian and a
# network namespace each. Sourced by test-packages.sh.
#
#   gateway 192.0.2.1 ---- 192.0.2.2 relay 1.2.3.1 ---- 1.2.3.2 web server and DNS
#
# Relays dial only public addresses unless told otherwise, so the server has one.

names=()
shells=()

# Ends the hosts that two_hosts made.
end_hosts() {
  local each
  for each in "${shells[@]}"; do kill "$each" 2>/dev/null || true; done
  for each in "${names[@]}"; do
    ip netns pids "$each" 2>/dev/null | xargs --no-run-if-empty kill -9 2>/dev/null || true
    ip netns delete "$each" 2>/dev/null || true
  done
  for each in gateway relay; do
    if mountpoint -q "$work/$each/proc"; then umount "$work/$each/proc"; fi
    if mountpoint -q "$work/$each/dev"; then umount "$work/$each/dev"; fi
  done
}

# host NAME: a root with the package beside it, in a namespace of its own, with a shell that reads
# $work/NAME.in and writes $work/NAME.out.
host() {
  clean_root "$work/$1" curl,iproute2 || return 1
  mount -t proc proc "$work/$1/proc"
  mount --bind /dev "$work/$1/dev"
  cp "$folder"/tradewind_*_"$own".deb "$work/$1/root/"
  echo "nameserver 1.2.3.2" >"$work/$1/etc/resolv.conf"
  mkfifo "$work/$1.in"
  # In /root, as a terminal would begin.
  ip netns exec "tw-$$-$1" chroot "$work/$1" env -i HOME=/root TERM=dumb \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -c 'cd && exec bash -s' \
    <"$work/$1.in" >"$work/$1.out" 2>&1 &
  shells+=($!)
}

network() {
  local each
  for each in gateway relay server; do
    ip netns add "tw-$$-$each"
    names+=("tw-$$-$each")
    ip -n "tw-$$-$each" link set lo up
  done
  ip -n "tw-$$-gateway" link add relay type veth peer name gateway netns "tw-$$-relay"
  ip -n "tw-$$-relay" link add server type veth peer name relay netns "tw-$$-server"
  ip -n "tw-$$-gateway" address add 192.0.2.1/24 dev relay
  ip -n "tw-$$-relay" address add 192.0.2.2/24 dev gateway
  ip -n "tw-$$-relay" address add 1.2.3.1/24 dev server
  ip -n "tw-$$-server" address add 1.2.3.2/24 dev relay
  ip -n "tw-$$-gateway" link set relay up
  ip -n "tw-$$-relay" link set gateway up
  ip -n "tw-$$-relay" link set server up
  ip -n "tw-$$-server" link set relay up
}

# type_line HOST LINE: as one types it; waits until the shell has taken it.
type_line() {
  printf '%s\necho "taken $?"\n' "$2" >&"${inputs[$1]}"
  local taken=$((${typed[$1]:-0} + 1)) left=600
  typed[$1]=$taken
  until [ "$(grep -c '^taken ' "$work/$1.out")" -ge "$taken" ]; do
    left=$((left - 1))
    [ $left -gt 0 ] || { failed "no answer to: $2"; tail -n 20 "$work/$1.out"; return 1; }
    sleep 0.1
  done
  [ "$(grep '^taken ' "$work/$1.out" | tail -n 1)" = "taken 0" ] ||
    { failed "on the $1's host: $2"; tail -n 20 "$work/$1.out"; return 1; }
}

# printed HOST PATTERN: the last word like that in what a host printed.
printed() { grep -oE "$2" "$work/$1.out" | tail -n 1; }

# What the lines call in capitals, as one copies it from the other terminal.
set_variables() {
  local variable from start value
  for variable in RELAY:relay:twid_ OPERATOR:relay:twop_ GATEWAY:gateway:twid_ GRANT:relay:twgrant_; do
    IFS=: read -r variable from start <<<"$variable"
    value=$(printed "$from" "$start[A-Za-z0-9_-]+") || continue
    echo "$variable=$value" >&"${inputs[$1]}"
  done
  echo "HOST=192.0.2.2" >&"${inputs[$1]}"
}

# The lines, each after its host.
ten_lines() {
  awk '/^## Two hosts in ten lines/ { on = 1; next } /^## / { on = 0 } !on { next }
    /^On the relay/ { host = "relay" } /^On the gateway/ { host = "gateway" }
    /^```/ { code = !code; next } code { print host "\t" $0 }' "$page"
}

two_hosts() {
  has ip && has python3 || { skipped "two hosts: no ip, or no python3"; return 0; }
  declare -gA inputs=() typed=()
  network
  host relay && host gateway || return 0
  local relay_in gateway_in
  exec {relay_in}>"$work/relay.in" {gateway_in}>"$work/gateway.in"
  inputs[relay]=$relay_in inputs[gateway]=$gateway_in
  mkdir "$work/site"
  { echo "a marker in clear"; head -c 20000000 /dev/urandom; } >"$work/site/index.html"
  ip netns exec "tw-$$-server" python3 "$here/test-packages/site.py" "$work/site" 1.2.3.2 &
  shells+=($!)
  ip netns exec "tw-$$-relay" python3 "$here/test-packages/overheard.py" gateway \
    "a marker in clear" 7000 >"$work/overheard" &
  local listener=$!
  shells+=($listener)
  local count=0 from line
  ten_lines >"$work/lines"
  while IFS=$'\t' read -r from line; do
    count=$((count + 1))
    set_variables "$from"
    type_line "$from" "$line" || return 0
    # A process in the background is ready soon.
    case $line in *"&") sleep 2 ;; esac
  done <"$work/lines"
  expect "ten lines" test "$count" = 10
  expect "the bytes came" cmp "$work/site/index.html" "$work/gateway/etc/tradewind/page"
  expect "the server saw the relay, not the gateway" grep -q '^1.2.3.1 ' "$work/site.log"
  kill "$listener"; wait "$listener" || true
  expect "between the hosts they were encrypted ($(cat "$work/overheard"))" \
    grep -qE '^[1-9][0-9]{7} bytes, 0 times in clear$' "$work/overheard"
  expect "doctor finds the gateway's host fit" chroot "$work/gateway" \
    tradewind doctor --config /etc/tradewind/gateway.toml
}
