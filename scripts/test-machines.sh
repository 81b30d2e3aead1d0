#!/usr/bin/env bash
# Tries `tradewind machines` with real Terraform against moto, which plays AWS: machines are made,
# join, are lost, changed, removed and destroyed, and a killed run leaves nothing. moto starts no
# machines: agents in network namespaces join with the invites that machines were given.
# Says SKIPPED where a tool or a right is missing. TERRAFORM_PLUGINS names a folder with providers,
# as `terraform providers mirror` makes it, where the registry cannot be reached.
# Usage: test-machines.sh TRADEWIND, as root.
#
#   operator, controller, moto 1.2.3.1 ---- bridge ---- machines 1.2.3.11 ...
set -euo pipefail

tradewind=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
# shellcheck source=scripts/test-packages/roots.sh
. "$here/test-packages/roots.sh"

for tool in terraform moto_server aws ip python3; do
  has "$tool" || { skipped "tradewind machines: no $tool (pip install 'moto[server]' awscli; https://terraform.io)"; exit 0; }
done
[ "$(id -u)" = 0 ] || { skipped "tradewind machines: needs root for network namespaces"; exit 0; }

operator=tw-$$-operator
started=()
cleanup() {
  local each
  for each in "${started[@]}"; do
    kill -KILL "$each" 2>/dev/null || true
    wait "$each" 2>/dev/null || true
  done
  for each in $(ip netns list | grep -o "^tw-$$-[a-z0-9]*"); do
    # Children of those above, such as the controller.
    ip netns pids "$each" | xargs -r kill -KILL
    ip netns delete "$each"
  done
  [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap cleanup EXIT

ip netns add "$operator"
ip -n "$operator" link set lo up
ip -n "$operator" link add bridge type bridge
ip -n "$operator" address add 1.2.3.1/24 dev bridge
ip -n "$operator" link set bridge up

export AWS_ENDPOINT_URL=http://127.0.0.1:5999 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
export AWS_EC2_METADATA_DISABLED=true AWS_DEFAULT_REGION=us-east-1
export TF_CLI_CONFIG_FILE=$work/terraformrc
: >"$TF_CLI_CONFIG_FILE"
# Providers come before, as the operator's namespace leads nowhere.
plugins=${TERRAFORM_PLUGINS:-$work/plugins}
if [ ! -d "$plugins" ]; then
  printf '{"terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": "~> 5.0"}}}}' >"$work/mirror.tf.json"
  (cd "$work" && terraform providers mirror "$plugins") >"$work/mirror.log" 2>&1 ||
    { skipped "tradewind machines: no provider for AWS: $(tail -n 1 "$work/mirror.log")"; exit 0; }
fi
printf 'provider_installation {\n  filesystem_mirror { path = "%s" }\n}\n' "$plugins" >"$TF_CLI_CONFIG_FILE"

# inside COMMAND ...: runs it on the operator's host.
inside() { ip netns exec "$operator" "$@"; }

inside moto_server -p 5999 >"$work/moto.log" 2>&1 &
started+=($!)
inside "$tradewind" controller init "$work/net" --agents 1.2.3.1:7440 >"$work/init.log" 2>&1
inside "$tradewind" controller run "$work/net" >"$work/controller.log" 2>&1 &
started+=($!)
for _ in $(seq 100); do
  if inside aws ec2 describe-regions >/dev/null 2>&1 &&
    inside "$tradewind" status --controller "$work/net" >/dev/null 2>&1; then break; fi
  sleep 0.3
done

# image REGION: an image that moto has there.
image() { inside aws ec2 describe-images --region "$1" --query 'Images[0].ImageId' --output text; }
virginia_image=$(image us-east-1)
dublin_image=$(image eu-west-1)

# file NAME TYPE [MACHINE ...]: a file of machines with these; virginia is of that type.
file() {
  local file=$work/$1.toml type=$2 machine; shift 2
  cat >"$file" <<END
name = "net"
package = "https://example.org/tradewind.deb"
sha256 = "$(printf '0%.0s' {1..64})"
ssh_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS"
ssh_from = ["198.51.100.0/24"]
END
  for machine in "$@"; do
    case $machine in
      virginia) printf '[[machine]]\nname = "virginia"\nregion = "aws:us-east-1"\ntype = "%s"\nimage = "%s"\n' "$type" "$virginia_image" ;;
      *) printf '[[machine]]\nname = "%s"\nregion = "aws:eu-west-1"\nimage = "%s"\n' "$machine" "$dublin_image" ;;
    esac >>"$file"
  done
}

# machines NAME ARGUMENT ...: keeps what it prints as $work/said.json, and its exit code.
machines() {
  local name=$1; shift
  code=0
  inside "$tradewind" machines "$work/$name.toml" --controller "$work/net" -o json "$@" \
    >"$work/said.json" 2>>"$work/machines.log" || code=$?
}

# ask EXPRESSION: evaluates Python over the answer `a`.
ask() { python3 -c 'import json, sys; a = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$work/said.json" "$1"; }

# there REGION: the ids of instances that run in a region, in order. `aws` takes seconds for it.
there() {
  inside curl -fsS http://127.0.0.1:5999/ \
    -H "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/$1/ec2/aws4_request" \
    -d 'Action=DescribeInstances&Version=2016-11-15' \
    -d 'Filter.1.Name=instance-state-name&Filter.1.Value.1=pending&Filter.1.Value.2=running' |
    grep -oE '<instanceId>[^<]*' | cut -d'>' -f2 | sort | xargs
}
all_there() { echo "$(there us-east-1) $(there eu-west-1)" | xargs; }

# left REGION: all that has the tag's key in a region.
left() {
  local list
  for list in describe-vpcs describe-subnets describe-security-groups describe-internet-gateways \
    describe-route-tables describe-key-pairs describe-volumes; do
    inside aws ec2 "$list" --region "$1" --filters Name=tag-key,Values=tradewind --output text
  done
  there "$1"
}

number=10
# boot REGION ID: what the machine's first boot would do: an agent joins by the invite in its script.
boot() {
  number=$((number + 1))
  local namespace=tw-$$-m$number invite
  invite=$(inside aws ec2 describe-instance-attribute --region "$1" --instance-id "$2" --attribute userData \
    --query UserData.Value --output text | base64 -d | grep -o 'twinvite1_[^ ]*')
  ip netns add "$namespace"
  ip -n "$namespace" link set lo up
  ip -n "$operator" link add "m$number" type veth peer name wan netns "$namespace"
  ip -n "$operator" link set "m$number" master bridge up
  ip -n "$namespace" address add "1.2.3.$number/24" dev wan
  ip -n "$namespace" link set wan up
  ip netns exec "$namespace" "$tradewind" agent join "$invite" --dir "$work/agent-$number" \
    --stop-processes >"$work/agent-$number.log" 2>&1 &
  started+=($!)
}
booted=" "
# boot_new: boots each machine that has not been booted, as they appear, until `machines_pid` ends.
boot_new() {
  local region id
  while kill -0 "$1" 2>/dev/null; do
    for region in us-east-1 eu-west-1; do
      for id in $(there "$region"); do
        case $booted in *" $id "*) continue ;; esac
        booted+="$id "
        boot "$region" "$id"
      done
    done
    sleep 1
  done
}
# apply NAME ARGUMENT ...: `--yes`, while machines boot.
apply() {
  local name=$1; shift
  machines "$name" --yes "$@" &
  local running=$!
  boot_new "$running"
  wait "$running"
  code=0
}

states() {
  inside "$tradewind" hosts --controller "$work/net" -o csv |
    python3 -c 'import csv, sys; print(*sorted(row["state"] for row in csv.DictReader(sys.stdin)))'
}
is() { [ "$1" = "$2" ] || { tail -n 5 "$work/machines.log"; tr -d '\n' <"$work/said.json"; printf '\nexpected: %s\nfound: %s\n' "$2" "$1"; return 1; }; }

file net aws:c5n.large virginia dublin
machines net
expect "prices are shown before anything is made" is "$(ask 'a["usd_per_hour"], [m["action"] for m in a["machines"]]')" "(0.216, ['make', 'make'])"
expect "and nothing is made" is "$(all_there)$(ls -d "$work/net.machines" 2>/dev/null)" ""

# moto has no subscribers of budgets: Terraform only checks the document with an alarm.
cat >"$work/validate" <<END
#!/bin/sh
[ "\$1" != plan ] || { terraform validate -no-color >"$work/valid" 2>&1; exit 1; }
exec terraform "\$@"
END
chmod +x "$work/validate"
file alarm aws:c5n.large virginia dublin
printf '[alarm]\nusd_per_month = 200\nemail = "ops@example.org"\n' >>"$work/alarm.toml"
machines alarm --yes --terraform "$work/validate"
expect "a document with an alarm is valid" grep -q "The configuration is valid" "$work/valid"

apply net
expect "two machines are made and join" is "$(ask '[(m["machine"], m["state"]) for m in a["machines"]]')" "[('virginia', 'well'), ('dublin', 'well')]"
first=$(all_there)
machines net --yes
expect "again: nothing changes" is "$code $(ask '[m["action"] for m in a["machines"]]') $(all_there)" "0 ['keep', 'keep'] $first"

inside aws ec2 terminate-instances --instance-ids "${first%% *}" >/dev/null
apply net
expect "a machine that was taken away is made again" is "$(ask '[(m["action"], m["state"]) for m in a["machines"]]')" "[('make', 'well'), ('keep', 'well')]"
expect "and its host is revoked" is "$(states)" "revoked well well"

file net aws:m5.8xlarge virginia dublin
apply net
expect "another type is another machine" is "$(ask '[(m["action"], m["state"]) for m in a["machines"]]')" "[('replace', 'well'), ('keep', 'well')]"
expect "whose host before is revoked" is "$(states)" "revoked revoked well well"

file net aws:m5.8xlarge virginia
machines net --yes
expect "a machine that is no longer in the file goes" is "$code $(ask '[(m["machine"], m["action"], m["state"]) for m in a["machines"]]')" "0 [('virginia', 'keep', 'well'), ('dublin', 'remove', 'removed')]"
expect "with its host" is "$(there eu-west-1) $(states)" " revoked revoked revoked well"

# Killed as soon as a machine is there: Terraform may not have written it down.
file net aws:m5.8xlarge virginia dublin galway
setsid ip netns exec "$operator" "$tradewind" machines "$work/net.toml" --controller "$work/net" --yes >"$work/killed.log" 2>&1 &
running=$!
for _ in $(seq 300); do [ -z "$(there eu-west-1)" ] || break; sleep 0.2; done
kill -KILL -- "-$running" 2>/dev/null || true
wait "$running" 2>/dev/null || true
rm -f "$work/net.machines/.terraform.tfstate.lock.info"
# What it might leave: an instance in a network, with the tag.
tag=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["tag"])' "$work/net.machines/tradewind.json")
tagged() { echo "ResourceType=$1,Tags=[{Key=tradewind,Value=$tag}]"; }
made() { inside aws ec2 --region eu-west-1 --output text "$@"; }
vpc=$(made create-vpc --cidr-block 10.9.0.0/24 --tag-specifications "$(tagged vpc)" --query Vpc.VpcId)
gateway=$(made create-internet-gateway --tag-specifications "$(tagged internet-gateway)" --query InternetGateway.InternetGatewayId)
made attach-internet-gateway --vpc-id "$vpc" --internet-gateway-id "$gateway"
subnet=$(made create-subnet --vpc-id "$vpc" --cidr-block 10.9.0.0/24 --tag-specifications "$(tagged subnet)" --query Subnet.SubnetId)
made run-instances --image-id "$dublin_image" --instance-type t3.nano --subnet-id "$subnet" --tag-specifications "$(tagged instance)" >"$work/orphan"
machines net --sweep
expect "what Terraform does not know is told" is "$code $(ask 'sorted({f["kind"] for f in a["found"]} & {"instance", "internet gateway", "subnet", "network"})')" "1 ['instance', 'internet gateway', 'network', 'subnet']"
machines net --sweep --yes
expect "and removed" is "$code $(ask 'all(f["is_removed"] for f in a["found"]), a["unseen"]')" "0 (True, [])"
apply net
expect "and the next run finishes" is "$(ask '[m["state"] for m in a["machines"]]')" "['well', 'well', 'well']"

stranger=$(inside aws ec2 run-instances --image-id "$virginia_image" --instance-type t3.nano \
  --tag-specifications 'ResourceType=instance,Tags=[{Key=tradewind,Value=net-00000000}]' --query 'Instances[0].InstanceId' --output text)
machines net --destroy
expect "destroy shows what it would do" is "$(ask '[m["action"] for m in a["machines"]]')" "['remove', 'remove', 'remove']"
machines net --destroy --yes
expect "destroy ends with success" is "$code" 0
machines net --sweep
expect "nothing is left to sweep" is "$code $(ask 'a["found"]')" "0 []"
expect "but what has another folder's tag" is "$(all_there)" "$stranger"
inside aws ec2 terminate-instances --instance-ids "$stranger" >/dev/null
expect "nothing with our tag is left" is "$(left us-east-1)$(left eu-west-1)" ""
expect "all hosts are revoked" is "$(states | tr ' ' '\n' | sort -u)" revoked

echo "$failures failed"
[ "$failures" = 0 ]
