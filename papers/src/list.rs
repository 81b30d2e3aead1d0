//! The papers' experiments by name.
//!
//! A run compares the paper's value with ours, states its assumptions, and reports whether the lab
//! kept time. Repeats take successive seeds; a row's interval is that of Student's t over them.
//! Each experiment has a scenario file, built in; another one may be given.

use tradewind_demo::scenario::Scenario;

use crate::harness::{Environment, Experiment};
use crate::{
    contention, cp_real, download, jump, modelled, numeric, opening, packets, rates, regions,
    sharing, soak,
};

/// A numeric experiment of the list.
macro_rules! numeric {
    ($name:literal, $source:literal, $kind:ident, $summary:literal) => {
        Experiment {
            name: $name,
            source: $source,
            summary: $summary,
            scenario: include_str!(concat!("../scenarios/", $name, ".toml")),
            environment: Environment::Numeric {
                run: |experiment, options, observer| {
                    numeric::run(numeric::Kind::$kind, experiment, options, observer)
                },
                check: |text| numeric::check(numeric::Kind::$kind, text),
                takes_table: numeric::Kind::$kind.takes_table(),
            },
        }
    };
}

/// An experiment of the list that runs on real kernel TCP.
macro_rules! lab {
    ($name:literal, $source:literal, $run:path, $summary:literal) => {
        Experiment {
            name: $name,
            source: $source,
            summary: $summary,
            scenario: include_str!(concat!("../scenarios/", $name, ".toml")),
            environment: Environment::Lab($run),
        }
    };
}

/// Returns all experiments, by paper and name.
#[must_use]
pub const fn all() -> &'static [Experiment] {
    ALL
}

const ALL: &[Experiment] = &[
    numeric!(
        "cp-model",
        "CP IV-C",
        Model,
        "rates by the paper's formula against the whole model of a transfer"
    ),
    lab!("cp-model-lab", "CP IV-C", modelled::run, "the same formula against kernel TCP"),
    lab!(
        "cp-kinds",
        "CP IV-A",
        rates::run,
        "direct, one forwarding relay, one and two splitting ones, by location"
    ),
    numeric!("cp-flows", "CP VII-B", Flows, "one source in Tokyo to more and more destinations"),
    numeric!("cp-budget", "CP VII-B", Budget, "what each algorithm makes of more budget"),
    numeric!("cp-cost", "CP VII-B", Cost, "free set-up, then free transfer"),
    numeric!("cp-lastmile", "CP VII-B", LastMile, "faster last miles, relays of two sizes"),
    numeric!("cp-usecases", "CP VII-B", UseCases, "the four use cases"),
    numeric!("cp-runtime", "CP VII-B", RunTime, "how long the algorithms take"),
    Experiment {
        name: "cp-real",
        source: "CP VII-C",
        summary: "full mesh of four sites, six dollars: all algorithms planned, deployed, carried",
        scenario: Scenario::CP_REAL,
        environment: Environment::Lab(cp_real::run),
    },
    numeric!(
        "trn-scope",
        "TRN",
        Scope,
        "what a relay still gains once windows, connections and VM caps are seen to"
    ),
    numeric!(
        "trn-day",
        "TRN",
        Stable,
        "how stable the choice is whether to relay, over a day of changing round trips"
    ),
    lab!(
        "trn-single",
        "TRN",
        regions::run,
        "what one default connection carries between eleven regions"
    ),
    lab!(
        "trn-tuned",
        "TRN",
        regions::run,
        "raised windows, then one stream over many connections, below a VM's cap"
    ),
    lab!(
        "trn-scope-lab",
        "TRN",
        rates::run,
        "what a relay gains before and after tuning, on kernel TCP"
    ),
    lab!(
        "trn-vmcap",
        "TRN",
        rates::run,
        "connections share a VM's cap, wherever they go, whoever comes and goes"
    ),
    lab!("trn-intra", "TRN", rates::run, "a slow VM sends through a fast one of its own region"),
    lab!(
        "trn-contention",
        "TRN",
        contention::run,
        "one VM's flows to several regions, planned per link and per VM"
    ),
    lab!(
        "cdd-split",
        "CDD III-A",
        download::run,
        "forwarding against splitting with one to three relays, and Quick-Start"
    ),
    lab!("cdd-hops", "CDD III-B", download::run, "every single relay, every middle relay of three"),
    lab!("cdd-cc", "CDD III-C", download::run, "Cubic, BBR and Quick-Start at the relays"),
    lab!("cdd-small", "CDD III-E", download::run, "files of 17 and 18 KB, also with TCP Fast Open"),
    lab!(
        "cdd-fair",
        "CDD III-D",
        sharing::run,
        "what large initial windows do to others at a shared bottleneck"
    ),
    lab!("cdd-four", "CDD III-F", download::run, "four relays by least largest inner leg"),
    lab!("cdd-mixed", "CDD III-G", download::run, "relays of two clouds against those of one"),
    lab!(
        "cdd-sequence",
        "CDD III-D",
        download::run,
        "bytes over time between two relays: slow start's bursts, Quick-Start's slope"
    ),
    lab!("cdd-e2e", "CDD V", download::run, "BBR or large windows end to end against relays"),
    numeric!("cdd-rtt", "CDD", Rtt, "which gains round-trip times foretell, and which not"),
    lab!(
        "cdd-rtt-lab",
        "CDD III-F",
        download::run,
        "the same on kernel TCP: round trips beside measured gains"
    ),
    numeric!("jq-delay", "JQ 5.1", PacketDelay, "when packets arrive over each packet service"),
    numeric!("jq-cost", "JQ 5.1.1", PacketCost, "what each packet service costs"),
    numeric!(
        "jq-recovery",
        "JQ 5.2",
        PacketRecovery,
        "what coding recovers of what paths lose, with and without ARQ on access paths"
    ),
    numeric!(
        "jq-fec",
        "JQ 5.2",
        PacketFec,
        "what coding recovers beside repair packets on the direct path"
    ),
    numeric!(
        "jq-straggler",
        "JQ 5.2",
        PacketStraggler,
        "one repair packet across flows against two, where helpers answer late or not at all"
    ),
    lab!(
        "jq-recovery-lab",
        "JQ 5.2",
        packets::recovery::run,
        "the same of relays and gateways on the lab, beside the simulation"
    ),
    lab!(
        "jq-video",
        "JQ 5.3",
        packets::video::run,
        "a video and a voice call through an outage of their paths, by each packet service"
    ),
    lab!(
        "jq-tcp",
        "JQ 5.4",
        packets::tcp::run,
        "short transfers over lossy paths: kernel TCP inside packet services, and alone"
    ),
    lab!(
        "jq-mobile",
        "JQ 5.5",
        packets::mobile::run,
        "a call between phones with copies of all or of chosen packets, and a file beside it"
    ),
    numeric!("rt-model", "RT II-B", Rounds, "round trips that larger initial windows save"),
    numeric!("rt-cmax", "RT IV-B1", Cmax, "windows of 34 PoPs by the bound on what is learned"),
    numeric!(
        "rt-traffic",
        "RT IV-B1",
        Traffic,
        "windows at a busy PoP and at one with probes alone"
    ),
    lab!(
        "rt-probes",
        "RT IV-B2",
        jump::probes::run,
        "probes between 34 PoPs, with the daemon and without"
    ),
    lab!(
        "rt-guard",
        "ours",
        jump::guard::run,
        "what jumps cost on shallow queues, in crowds, on links that got worse"
    ),
    numeric!(
        "lab-day",
        "ours",
        Day,
        "a day that changes by the hour: the controller, its morning's plan, direct, hindsight"
    ),
    lab!("soak", "ours", soak::run, "sessions of all kinds for a quarter of an hour, under faults"),
    lab!("rt-ramp", "ours", jump::ramp::run, "1 MB against a round trip and its time on the wire"),
    lab!(
        "stream-chains",
        "ours",
        download::run,
        "files over two of our relays against two HAProxys, as they come and tuned by hand"
    ),
    lab!(
        "stream-first-byte",
        "ours",
        opening::first_byte::run,
        "when the first byte comes over a warm chain, by port forward and by TPROXY"
    ),
    lab!(
        "stream-failover",
        "ours",
        opening::failover::run,
        "how soon new sessions leave a path that dies or slows down"
    ),
    lab!(
        "packet-failover",
        "ours",
        packets::failover::run,
        "what packets see when a relay dies and comes back, and when a gateway is killed"
    ),
    lab!(
        "packet-uplink",
        "ours",
        packets::uplink::run,
        "whether copies congest what they protect on a short uplink, and whether auto steps back"
    ),
];

/// Returns the experiment of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Experiment> {
    all().iter().find(|experiment| experiment.name == name)
}
