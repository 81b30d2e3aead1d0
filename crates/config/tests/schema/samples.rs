//! Configuration files that together use every key, and those of the fuzzed corpus.

use toml::Table;
use tradewind_config::Kind;
use tradewind_config::users::Hashed;
use tradewind_grant::{Extensions, Grant, IdentityKey, OperatorKey, Relays};
use tradewind_units::Timestamp;

use crate::Form;

/// Every key of a relay's file but those of other samples.
const RELAY: &str = r#"
listen = ["127.0.0.1:7000", "[fe80::1%2]:7000"]
identity_file = "relay.key"
previous_identity_file = "old.key"
run_as = "tradewind"
operators = ["OPERATOR"]
revocations = "/etc/revoked"
metrics = "0.0.0.0:9464"
metrics_expose = true
metrics_hosts = ["relay.example.com"]
workers = 2
[policy]
destinations = ["198.51.100.0/24:443", "*.example.com:1-9", "[2001:db8::]/32:*"]
next_hops = ["192.0.2.0/24:7000"]
never = ["198.51.100.9:443"]
allow_loopback = false
[limits]
sessions = 8000
unauthenticated = 1000
resting = 0
backlog = 4096
rate = "8 Gbit/s"
memory = "256MB"
trusted_sources = ["192.0.2.0/24:*"]
each_gateway = { sessions = 4000 }
each_grant = { sessions = 500, rate = "1.5 Gbit/s", memory = "32 MiB" }
each_source = { sessions = 200 }
[timeouts]
header = "5 s"
dial = "10s"
idle = "off"
half_closed = "5 min"
user = "2 min"
keepalive = "1 min"
drain = "30 s"
retire = "1 h"
[leg.accept]
encryption = "either"
[leg.dial]
profile = "paced-start"
congestion_control = "cubic"
initial_window = 10
window = "2.875 MB"
send_buffer = "4 MB"
receive_buffer = "4 MB"
pacing_rate = "2 Gbit/s"
pacing_rtts = 4
notsent_lowat = "2097152 B"
fast_open = false
warm = 16
encryption = "tls"
connections = "adaptive"
stripe_after = "0 B"
[[leg.to]]
address = "192.0.2.2:7000"
dial = { connections = 4 }
[[leg.at]]
address = "127.0.0.1:7000"
encryption = "none"
[access_log]
to = "/var/log/access.log"
rotate_at = "100 MB"
keep = 4
one_in = 1
[traces]
endpoint = "http://127.0.0.1:4318/v1/traces"
sample = 0.05
[audit_log]
to = "udp:192.0.2.50:5514"
[jumpstart]
socket = "/run/j.sock"
hints = "hints.toml"
learn = { mode = "paced" }
observe = { interval = "2 s", ports = [443], within = ["10.0.0.0/8"], except = ["::1/128"] }
act = { through = "sockops", receive_buffer = "8 MB" }
[packet]
listen = "0.0.0.0:7001"
workers = 1
relays = ["IDENTITY-1"]
next_hops = ["192.0.2.0/24:7001"]
allow_loopback = false
registry = true
leg_seal = "headers"
usd_per_gb = { to_relays = 0.02, to_endpoints = 1 }
coding = { cross_stream = [2, 10], in_stream = [1, 5], within = "30 ms", across_gateways = true }
rendezvous = { bytes = "256 MB", per_sender = "32 MB", keep = "1 h" }
"#;

/// A relay's file with identities in place of their files.
const TEST_RELAY: &str = r#"
listen = ["127.0.0.1:0"]
identity = "SECRET-1"
previous_identity = "SECRET-2"
operators = ["OPERATOR"]
"#;

/// Every key of a gateway's file but those of other samples.
const GATEWAY: &str = r#"
identity_file = "gateway.key"
previous_identity_file = "old.key"
run_as = "tradewind"
grant = "GRANT"
revocations = "/etc/revoked"
socks5 = ["0.0.0.0:1080"]
connect = ["[::1]:8080"]
expose = true
expose_without_password = false
optimistic = true
direct = true
allow_loopback = false
metrics = "127.0.0.1:9464"
metrics_expose = false
metrics_hosts = []
workers = 1
control_share = 0.02
[limits]
sessions = 1
[timeouts]
idle = "1 h"
[leg.dial]
warm = 1
[access_log]
to = "unix:/run/log.sock"
[traces]
endpoint = "http://[::1]:4318"
sample = "1 %"
[jumpstart]
[[user]]
name = "ann"
password = "HASH"
[[forward]]
listen = "127.0.0.1:8000-8010"
to = "db.example.com:9000-9010"
flow = "orders"
send_proxy = "v2"
accept_proxy = ["10.0.0.9/32:*"]
[[tproxy]]
destinations = ["198.51.100.0/24:443"]
local_output = true
port = 7080
flow = "web"
send_proxy = "v2"
accept_proxy = ["10.0.0.9/32:*"]
[routes]
default = ["hamina"]
default_fallback = ["direct"]
[[routes.relay]]
name = "hamina"
address = "hamina.example.com:7000"
identity = "IDENTITY-1"
[[routes.route]]
destination = "198.51.100.0/24:443"
via = "direct"
[[routes.route]]
destination = "*.example.com:*"
via = ["hamina"]
fallback = ["direct"]
[socks5_udp]
remote = { address = "192.0.2.4:7001", identity = "IDENTITY-4" }
relays = [{ address = "192.0.2.1:7001", identity = "IDENTITY-1" }]
service = "auto"
budget = "150 ms"
[packet_endpoint]
listen = "[::]:0"
operators = ["OPERATOR"]
relays = ["IDENTITY-1"]
destinations = ["10.0.0.0/8:5004"]
preserve_source = ["10.0.0.0/8:*"]
allow_loopback = false
repeat_copies = true
uplink = "10 Mbit/s"
members = "members.toml"
leg_seal = "whole"
rendezvous = [{ address = ["192.0.2.1:7001", "[2001:db8::1]:7001"], identity = "IDENTITY-1" }]
tun = { name = "tw9", sources = ["10.2.0.0/16:*"], mtu = 1400 }
copies = { rtp_key_frames = true, tcp_syn = true, dscp = [46], ports = [53], last_after = "9 ms" }
[[packet]]
listen = "127.0.0.1:5000"
to = "10.0.0.7:5004"
remote = "office"
[[packet]]
tproxy = { destinations = ["198.51.100.0/24:5004"], local_output = true, port = 7081 }
remote = "office"
service = "direct"
relays = [{ address = "192.0.2.1:7001", identity = "IDENTITY-1" }]
budget = "1 s"
fragment = true
[[packet]]
tun = { name = "tw0", destinations = ["10.1.0.0/16:*"], mtu = 1300 }
remote = { address = "192.0.2.4:7001", identity = "IDENTITY-4" }
relays = "nearest"
service = "direct"
[[packet]]
listen = "127.0.0.1:5001"
to = "10.0.0.7:5004"
remote = "office"
relays = "nearest"
service = "forwarding"
paths = "both"
budget = "1 s"
copies = { ports = [1] }
in_order = true
fragment = true
[[packet]]
listen = "127.0.0.1:5002"
to = "10.0.0.7:5004"
remote = "office"
relays = [{ address = "192.0.2.1:7001", identity = "IDENTITY-1" }]
[[packet]]
listen = "127.0.0.1:5003"
to = "10.0.0.7:5004"
remote = "office"
relays = "nearest"
service = "caching"
budget = "1 s"
copies = { ports = [1] }
in_order = true
fragment = true
[[packet]]
tproxy = { destinations = ["198.51.101.0/24:5004"] }
remote = "office"
relays = "nearest"
service = "coding"
budget = "1 s"
copies = { ports = [1] }
in_order = false
fragment = true
[[packet]]
tun = { name = "tw1", destinations = ["10.3.0.0/16:*"] }
remote = "office"
relays = "nearest"
service = "auto"
budget = "1 s"
max_loss = "0.1 %"
costs = { coding = 0.03, caching = 0.08, forwarding = 1, loss = 0.01 }
coding = { cross_stream = [2, 10], in_stream = [1, 5], within = "30 ms" }
copies = { tcp_syn = true }
in_order = true
fragment = false
[[packet]]
listen = "127.0.0.1:5005"
to = "10.0.0.7:5004"
remote = { identity = "IDENTITY-4" }
relays = [{ address = "192.0.2.1:7001", identity = "IDENTITY-1" }]
service = "rendezvous"
keep = "1 h"
[[packet]]
listen = "127.0.0.1:5006"
service = "forwarding"
paths = "both"
budget = "1 s"
group = [{ remote = "office", to = "10.0.0.7:5004", relays = "nearest" }]
"#;

/// A gateway's file with identities in place of their files, and the grant in a file.
const TEST_GATEWAY: &str = r#"
identity = "SECRET-1"
previous_identity = "SECRET-2"
grant_file = "grant"
connect = ["127.0.0.1:0"]
"#;

/// Every key of jump-start's file.
const JUMPSTART: &str = r#"
metrics = "127.0.0.1:9464"
metrics_expose = false
metrics_hosts = ["x"]
socket = "/run/j.sock"
hints = "hints.toml"
[observe]
interval = "1 s"
ports = [443]
within = ["10.0.0.0/8"]
except = ["10.99.0.0/16"]
cgroup = "/sys/fs/cgroup/web.slice"
[act]
through = "auto"
receive = true
receive_buffer = "8 MB"
cgroup = "/sys/fs/cgroup/web.slice"
all_namespaces = false
[learn]
mode = "riptide"
combine = "mean"
history_weight = 0.75
c_min = 10
c_max = 100
ttl = "90 s"
prefix_length_ipv4 = 32
prefix_length_ipv6 = 128
prefixes = ["192.0.2.0/30"]
control_share = "5 %"
fall_below = 0
pacing_share = 0.85
max_destinations = 100000
"#;

/// Instead of `history_weight`.
const ROUNDS: &str = "[learn]\nhistory_rounds = 8";

/// Fuzzed files of jump-start, accepted ones and others.
pub(crate) const CORPUS: [&str; 22] = [
    include_str!("../../../../fuzz/corpus/jumpstart_config/act"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/bounds"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/cut"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/empty"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/interval"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/interval-huge"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/metrics"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/mode"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/nan"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/negative"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/no-destinations"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/no-history"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/observe"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/paced"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/prefixes"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/rounds"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/shipped"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/strict"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/strict-by-routes"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/two-histories"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/unknown"),
    include_str!("../../../../fuzz/corpus/jumpstart_config/weight-one"),
];

/// The problem files of the repository.
pub(crate) const PROBLEMS: [&str; 4] = [
    include_str!("../../../../examples/plan/calls.toml"),
    include_str!("../../../../examples/plan/four-cities.toml"),
    include_str!("../../../../examples/plan/one-to-many.toml"),
    include_str!("../../../../examples/plan/relay-types.toml"),
];

/// The files that problems name.
pub(crate) const TABLES: [(&str, &str); 5] = [
    ("rtt.csv", "src,dst,rtt_ms\noffice,plant,200\n"),
    ("rate.csv", "src,dst,mbps\noffice,plant,300\n"),
    ("prices.csv", "from,to,usd_per_gb\naws:us-east-1,internet,0.07\n"),
    ("catalogue.toml", OWN_CATALOGUE),
    ("report.json", REPORT),
];

const OWN_CATALOGUE: &str = r#"
[[prices]]
cloud = "aws"
source = "the contract"
dated = "2026-10"
rules = [{ from = "*", to = "internet", usd_per_gb = 0.06 }]
"#;

const REPORT: &str = r#"[{ "schema_version": 1, "target": "192.0.2.7:7001", "rtt_min_ms": 9.5,
    "rtt_spread_ms": 1.5 }]"#;

/// Every key of a problem but those of generated flows.
const PROBLEM: &str = r#"
name = "all"
budget_usd = 12.5
objective = "cost"
start_up = "warm"
max_relays = 2
robust = 0.5
period = "24 h"
catalogue = "catalogue.toml"
regions = ["aws:us-east-1", "aws:eu-west-1", "gcp:europe-north1"]
assume_rtt_from_distance = true
same_region_rtt = "0.6 ms"
rtt_tables = ["rtt.csv"]
rate_tables = ["rate.csv"]
[[probes]]
from = "office"
reports = ["report.json"]
targets = { "192.0.2.7:7001" = "gcp:europe-north1" }
[leg.all]
congestion_control = "reno"
[leg.direct]
loss = "1 %"
[leg.access]
window = "2.875 MB"
connections = 4
per_connection = "500 Mbit/s"
initial_window = 10
quick_start = "off"
[leg.inner]
quick_start = "100 Mbit/s"
[[site]]
id = "office"
location = { latitude = 60.17, longitude = 24.94 }
access_rtt = "8 ms"
rate = "1 Gbit/s"
window = "4 MB"
uplink = { usd_per_gb = 0.01 }
[[site]]
id = "plant"
region = "aws:us-east-1"
egress_cap = "1.2 Gbit/s"
egress_cap_outside = "1 Gbit/s"
uplink = { usd_per_mbps = 2 }
[[flow]]
id = "backup"
from = "office"
to = "plant"
volume = "50 GB"
weight = 3
deadline = "5 h"
[[pair]]
between = ["office", "aws:eu-west-1"]
rtt = "40 ms"
spread = "2 ms"
rate = "400 Mbit/s"
window = "3 MB"
connections = 2
per_connection = "300 Mbit/s"
initial_window = 20
quick_start = "off"
loss = 0.001
congestion_control = "cubic"
[[pair]]
from = "plant"
to = "gcp:europe-north1"
blocked = true
[[relay_type]]
id = "small"
capacity = "1 Gbit/s"
per_connection = "500 Mbit/s"
set_up_usd = 0.2
usd_per_hour = 0.05
most = 3
clouds = ["aws", "gcp"]
[[relay_type]]
id = "large"
capacity = "2 Gbit/s"
regions = ["aws:us-east-1"]
[egress]
usd_per_gb = 0.08
tables = ["prices.csv"]
[[egress.pair]]
from = "aws:us-east-1"
to = "aws:eu-west-1"
usd_per_gb = 0.02
[running]
move_usd = 0.1
[[running.relay]]
region = "aws:eu-west-1"
relay_type = "small"
count = 1
[[running.path]]
flow = "backup"
regions = ["aws:eu-west-1"]
[[packet_flow]]
id = "video"
from = "office"
to = "plant"
rate = "1.5 Mbit/s"
packet = "1 kB"
span = "1 h"
budget = "400 ms"
max_loss = 0.002
internet_loss = "1 %"
helper_rtt = "20 ms"
[[packet_flow]]
from = "plant"
to = "office"
packet = "200 B"
packets_per_second = 50
budget = "400 ms"
[packets]
detection = "5 ms"
retention = "1 s"
coding = { cross_stream = [2, 10], in_stream = [1, 5], within = "30 ms" }
usd_per_hour = 0.1
flows_per_machine = 50
ingress = { usd_per_gb = 0.01 }
egress = { usd_per_mbps = 3 }
storage_usd_per_gb_hour = 0.001
[[packets.at]]
region = "aws:us-east-1"
usd_per_hour = 0.2
flows_per_machine = 20
ingress = { usd_per_gb = 0.02 }
egress = { usd_per_gb = 0.05 }
storage_usd_per_gb_hour = 0.002
[[packets.at]]
cloud = "gcp"
usd_per_hour = 0.3
"#;

/// The keys of generated flows.
const GENERATED: &str = r#"
assume_rtt_from_distance = true
regions = { clouds = ["gcp"], continents = ["europe"], except = ["gcp:europe-west2"] }
[generate]
pattern = "localized-one-to-many"
seed = 7
flows = 6
volume = "1 GB"
volume_max = "2 GB"
weight = 2
deadline = "10 h"
sources = ["host.gcp:europe-west1", "host.gcp:asia-east1", "host.gcp:us-east1"]
shares = [0.8, 0.1, 0.1]
[generate.sites]
clouds = ["gcp"]
continents = ["europe", "asia", "north-america"]
except = ["gcp:europe-north1"]
outside = false
access_rtt = "4 ms"
rate = "1 Gbit/s"
egress_cap = "2 Gbit/s"
egress_cap_outside = "1 Gbit/s"
window = "4 MB"
"#;

/// Returns the samples, with keys in place of their names.
pub(crate) fn samples() -> Vec<(Form, Table)> {
    let key = |seed| IdentityKey::from_entropy([seed; 32]);
    let operator = OperatorKey::from_entropy([9; 32]);
    let grant = Grant {
        gateway: key(1).public(),
        not_before: Timestamp::ZERO,
        expires: Timestamp::FAR_FUTURE,
        sessions: None,
        extensions: Extensions::default(),
        relays: Relays::Any,
        destinations: vec!["10.0.0.0/8:*".parse().unwrap()],
    };
    let grant = grant.sign(&operator).unwrap().to_string();
    let hash = Hashed::cheap(b"secret").unwrap().to_string();
    let filled = |(form, text): (Form, &str)| {
        let text = text
            .replace("GRANT", &grant)
            .replace("HASH", &hash)
            .replace("OPERATOR", &operator.public().to_string())
            .replace("SECRET-1", &key(1).to_secret_text())
            .replace("SECRET-2", &key(2).to_secret_text())
            .replace("IDENTITY-1", &key(3).public().to_string())
            .replace("IDENTITY-4", &key(4).public().to_string());
        (form, text.parse().unwrap())
    };
    let samples = [
        (Form::Process(Kind::Relay), RELAY),
        (Form::Process(Kind::Relay), TEST_RELAY),
        (Form::Process(Kind::Gateway), GATEWAY),
        (Form::Process(Kind::Gateway), TEST_GATEWAY),
        (Form::Process(Kind::Jumpstart), JUMPSTART),
        (Form::Process(Kind::Jumpstart), ROUNDS),
        (Form::Problem, PROBLEM),
        (Form::Problem, GENERATED),
    ];
    samples.into_iter().map(filled).collect()
}
