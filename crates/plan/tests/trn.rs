//! Tests of TRN's statements on machines: flows share the rate that their machine may send, and a
//! slow machine gains from a fast one in its region.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use tradewind_model::Catalogue;
use tradewind_plan::file;
use tradewind_plan::solver::{self, Limits};
use tradewind_plan::{Plan, Problem, explain, verify};

/// Returns flows of 10 GB from one machine in Virginia to three regions, each 80 ms away by a path
/// that eight connections fill with 2.3 Gbit/s; relays may run in Virginia and Ireland.
fn problem(site: &str, relay_type: &str) -> Problem {
    let mut text = format!(
        "budget_usd = 20.0\nstart_up = \"ignored\"\nsame_region_rtt = \"1 ms\"\nregions = \
         [\"aws:us-east-1\", \"aws:eu-west-1\"]\n\
         [leg.all]\nconnections = 8\n\
         [egress]\nusd_per_gb = 0.02\n\
         [[relay_type]]\nid = \"fast\"\nset_up_usd = 0.1\n{relay_type}\n\
         [[site]]\nid = \"vm\"\nregion = \"aws:us-east-1\"\n{site}\n"
    );
    let others = ["aws:eu-central-1", "aws:sa-east-1", "aws:us-west-2"];
    for (place, region) in others.iter().enumerate() {
        text += &format!("[[site]]\nid = \"s{place}\"\nregion = \"{region}\"\n");
        text += &format!(
            "[[flow]]\nid = \"f{place}\"\nfrom = \"vm\"\nto = \"s{place}\"\nvolume = \"10 GB\"\n"
        );
        for (relay, rtt) in [("aws:us-east-1", 80), ("aws:eu-west-1", 60)] {
            text +=
                &format!("[[pair]]\nbetween = [\"{relay}\", \"{region}\"]\nrtt = \"{rtt} ms\"\n");
        }
    }
    text += "[[pair]]\nbetween = [\"aws:us-east-1\", \"aws:eu-west-1\"]\nrtt = \"60 ms\"\n";
    let read = file::parse(&text, &Catalogue::builtin(), &mut |_| Err("no tables".to_owned()));
    Problem::new(read.unwrap().inputs).unwrap()
}

const FAST: &str = "capacity = \"10 Gbit/s\"";

fn planned(problem: &Problem) -> Plan {
    let auto = solver::by_name("auto").unwrap();
    let plan = solver::solve(auto.as_ref(), problem, &Limits::work(2_000_000)).unwrap();
    assert_eq!(verify(problem, &plan), vec![]);
    plan
}

fn binding(problem: &Problem, plan: &Plan) -> String {
    explain(problem, plan, &problem.flows()[0].id).unwrap().binding
}

#[test]
fn slow_machine_gains_by_a_fast_one_in_its_region() {
    // The cap on traffic that leaves the region is a third of what each flow could use: a relay in
    // the machine's region avoids it.
    let problem = problem("egress_cap_outside = \"900 Mbit/s\"", FAST);
    let plan = planned(&problem);
    let beside = |region: &str| region == "aws:us-east-1";
    for flow in &plan.flows {
        let regions = plan.regions_of(flow).unwrap();
        assert_eq!(regions.iter().map(|r| r.as_str()).filter(|r| beside(r)).count(), 1, "{flow:?}");
        assert!(beside(regions[0].as_str()));
        let direct = flow.fct_direct.unwrap().as_secs_f64();
        assert!(direct > 5.0 * flow.fct.as_secs_f64(), "300 Mbit/s direct: {flow:?}");
    }
    let direct = problem.share(0, &[]).unwrap().as_mbps();
    assert_eq!((direct, problem.share(0, &[0])), (300.0, None));
}

#[test]
fn equally_fast_machine_gains_nothing_by_relay() {
    let problem = problem("", "capacity = \"10 Gbit/s\"\nper_connection = \"100 Mbit/s\"");
    let plan = planned(&problem);
    assert!(plan.relays.iter().all(|relay| relay.region.as_str() != "aws:us-east-1"), "{plan:?}");
}

#[test]
fn flows_of_one_machine_share_its_cap() {
    // By link, each flow could go faster over Ireland (60 ms instead of 80), and relays are bought
    // for that.
    let by_link = problem("", FAST);
    let plan = planned(&by_link);
    assert!(plan.flows.iter().all(|flow| !flow.path.is_empty()), "{plan:?}");
    // By machine, the three flows share its rate, which direct paths already carry.
    let by_machine = problem("egress_cap = \"3 Gbit/s\"", FAST);
    let aware = planned(&by_machine);
    assert!(aware.relays.is_empty(), "{aware:?}");
    assert_eq!(by_machine.share(0, &[]).unwrap().as_mbps(), 1_000.0);
    let rate = 80.0 / aware.flows[0].fct.as_secs_f64();
    assert!((0.999..=1.001).contains(&rate), "{rate} Gbit/s");
    assert_eq!(binding(&by_machine, &aware), "source's cap of vm -> s0");
    // The plan that considers links only takes as long on that machine, and also costs relays.
    let offers = |flow: usize| plan.offers_of(&by_machine, &plan.flows[flow]).unwrap();
    let carried = (0..3).map(|flow| by_machine.fct(flow, &offers(flow)).unwrap());
    assert!(carried.sum::<std::time::Duration>() >= aware.total_fct);
    assert!(plan.cost > aware.cost);
    // A machine with enough capacity for all flows is no bottleneck.
    let uncapped = problem("egress_cap = \"30 Gbit/s\"", FAST);
    assert_eq!(uncapped.share(0, &[]), None);
    assert_eq!(planned(&uncapped).flows, plan.flows);
}
