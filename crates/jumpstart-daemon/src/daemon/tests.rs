//! Rounds over made-up connections, with changes that are recorded in a list.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::rc::Rc;

use tradewind_jumpstart::{IpNet, Sample};
use tradewind_net::NetError;
use tradewind_units::{Bandwidth, Bytes};

use super::*;

/// State that a test and its daemon share.
#[derive(Default)]
struct Scene {
    /// Samples of each round.
    open: RefCell<Vec<Sample>>,
    /// True if sampling fails.
    is_blind: Cell<bool>,
    /// True if sweeping fails.
    is_stuck: Cell<bool>,
    /// True if changes are refused.
    refuses: Cell<bool>,
    /// True if the actuator sees each connection.
    tells: Cell<bool>,
    /// Rate that it lends of each destination.
    lent_mbps: Cell<Option<f64>>,
    /// Changes applied.
    changes: RefCell<Vec<Change>>,
}

impl Scene {
    fn set(&self) -> usize {
        self.changes.borrow().iter().filter(|change| matches!(change, Change::Set(_))).count()
    }
}

struct Made(Rc<Scene>);

impl Observer for Made {
    fn round(&mut self, each: &mut dyn FnMut(&Sample)) -> Result<(), NetError> {
        if self.0.is_blind.get() {
            return Err(refusal());
        }
        self.0.open.borrow().iter().for_each(each);
        Ok(())
    }
}

impl Actuator for Made {
    fn name(&self) -> &'static str {
        "made"
    }

    fn sweep(&mut self) -> Result<usize, NetError> {
        if self.0.is_stuck.get() {
            return Err(refusal());
        }
        Ok(self.0.changes.take().len())
    }

    fn apply(&mut self, change: &Change) -> Result<Outcome, NetError> {
        if self.0.refuses.get() {
            return Err(refusal());
        }
        self.0.changes.borrow_mut().push(*change);
        Ok(Outcome::Done)
    }

    fn tells(&self) -> bool {
        self.0.tells.get()
    }

    fn lent_mbps(&self, _: &IpNet) -> Option<f64> {
        self.0.lent_mbps.get()
    }
}

fn refusal() -> NetError {
    NetError::system("be a kernel", std::io::Error::from(std::io::ErrorKind::PermissionDenied))
}

/// Configuration by which every destination is learned.
const NO_CONTROL: &str = "[learn]\ncontrol_share = 0";

/// A daemon's socket, in a directory that is removed with it.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("tw-daemon-{test}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("jumpstart.sock")
    }

    fn daemon(&self, scene: &Rc<Scene>, config: &str) -> Daemon {
        let actuator = Box::new(Made(Rc::clone(scene)));
        let parts = Parts {
            control: Control::open(&self.socket()).unwrap(),
            switch: Switch::beside(&self.socket()).unwrap(),
            observer: Box::new(Made(Rc::clone(scene))),
            chosen: Chosen { actuator, why: None },
            limit: None,
        };
        Daemon::of(&JumpstartConfig::parse(config).unwrap(), parts).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

/// Returns a connection that has carried a megabyte, with a window of 50 segments.
fn connection(number: u64, remote: IpAddr) -> Sample {
    Sample {
        connection: number,
        remote,
        window: Segments::new(50).unwrap(),
        slow_start_threshold: None,
        mss: Bytes::new(1000),
        rtt_min: Some(Duration::from_millis(40)),
        delivery_rate: Some(Bandwidth::from_mbps(10.0).unwrap()),
        application_limited: false,
        rate_limit: None,
        acked: Bytes::new(1_000_000),
        retransmitted_segments: 0,
        busy: Duration::from_secs(1),
    }
}

/// Returns one connection to each of so many hosts.
fn connections(count: u8) -> Vec<Sample> {
    let host = |number: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
    (0..count).map(|number| connection(number.into(), host(number))).collect()
}

#[test]
fn control_share_is_applied_once() {
    let place = Place::new("control");
    for (tells, all) in [(true, true), (false, false)] {
        let scene = Rc::new(Scene::default());
        scene.tells.set(tells);
        scene.open.replace(connections(200));
        let mut daemon = place.daemon(&scene, "[learn]\nmode = \"paced\"\ncontrol_share = 0.5");
        daemon.round(at(1));
        // The program in the kernel keeps the share back of each destination's connections.
        assert_eq!(scene.set() == 200, all, "{} of 200 set", scene.set());
    }
}

#[test]
fn failed_round_ends_no_connections() {
    let place = Place::new("blind");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, NO_CONTROL);
    daemon.round(at(0));
    scene.open.replace(connections(3));
    daemon.round(at(1));
    scene.is_blind.set(true);
    daemon.round(at(2));
    assert_eq!(daemon.metrics.failed_rounds.get(), 1);
    assert!(daemon.learner.arms().is_empty(), "{:?}", daemon.learner.arms());
    scene.is_blind.set(false);
    daemon.round(at(3));
    scene.open.take();
    daemon.round(at(4));
    let ended: u64 = daemon.learner.arms().values().map(|totals| totals.connections).sum();
    assert_eq!(ended, 3, "each once");
}

#[test]
fn nothing_is_set_until_everything_is_removed() {
    let place = Place::new("switch");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, NO_CONTROL);
    let switch = Switch::beside(&place.socket()).unwrap();
    scene.open.replace(connections(3));
    daemon.round(at(1));
    assert_eq!(scene.set(), 3);
    switch.turn(true).unwrap();
    scene.is_stuck.set(true);
    let refused = daemon.answer(&Request::Switch {});
    assert!(refused["error"].as_str().unwrap().contains("could not be taken back"), "{refused}");
    daemon.round(at(2));
    let status = daemon.answer(&Request::Status {});
    assert_eq!((&status["off"], &status["to_take_back"]), (&json!(true), &json!(true)));
    assert_eq!(scene.changes.borrow().len(), 3, "as it was: nothing taken back, nothing set");
    // Turned on meanwhile: what is in force is no longer known, and is removed all the same.
    switch.turn(false).unwrap();
    daemon.round(at(3));
    assert_eq!(scene.changes.borrow().len(), 3);
    switch.turn(true).unwrap();
    scene.is_stuck.set(false);
    let off = daemon.answer(&Request::Switch {});
    assert_eq!(off, json!({ "schema_version": 1, "off": true, "daemon": true }));
    assert!(scene.changes.borrow().is_empty());
    daemon.round(at(4));
    assert!(scene.changes.borrow().is_empty());
    switch.turn(false).unwrap();
    daemon.round(at(5));
    assert_eq!(scene.set(), 3);
}

#[test]
fn failed_removal_is_reported_to_the_client() {
    let place = Place::new("flush");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, NO_CONTROL);
    scene.open.replace(connections(2));
    daemon.round(at(1));
    let flushed = daemon.answer(&Request::Flush { within: None });
    assert_eq!(flushed["flushed"], 2);
    daemon.round(at(2));
    scene.refuses.set(true);
    let refused = daemon.answer(&Request::Flush { within: None });
    assert!(refused["error"].as_str().unwrap().contains("be a kernel"), "{refused}");
}

#[test]
fn failed_removal_is_retried_unless_set_again() {
    let place = Place::new("unremoved");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, &format!("{NO_CONTROL}\nttl = \"5 s\""));
    scene.open.replace(connections(2));
    daemon.round(at(1));
    // No round confirms them any more, and the kernel refuses to remove them.
    scene.open.take();
    scene.refuses.set(true);
    (2..9).for_each(|second| daemon.round(at(second)));
    assert!(daemon.learner.is_empty());
    scene.refuses.set(false);
    scene.changes.take();
    // One of them is seen again, in the round in which the kernel accepts changes again.
    scene.open.replace(connections(1));
    daemon.round(at(9));
    let name = |change: &Change| match change {
        Change::Set(setting) => format!("set {}", setting.prefix),
        Change::Renew { prefix, .. } => format!("renew {prefix}"),
        Change::Remove { prefix, .. } => format!("remove {prefix}"),
    };
    let changes: Vec<String> = scene.changes.take().iter().map(name).collect();
    assert_eq!(changes, ["remove 10.0.0.0/32", "remove 10.0.0.1/32", "set 10.0.0.0/32"]);
    daemon.round(at(10));
    let changes: Vec<String> = scene.changes.take().iter().map(name).collect();
    assert_eq!(changes, ["renew 10.0.0.0/32"]);
}

#[test]
fn setting_again_cancels_a_pending_removal() {
    let place = Place::new("set-again");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, NO_CONTROL);
    scene.open.replace(connections(1));
    daemon.round(at(1));
    scene.refuses.set(true);
    let refused = daemon.answer(&Request::Flush { within: None });
    assert!(refused["error"].as_str().unwrap().contains("tried again"), "{refused}");
    assert_eq!(daemon.unremoved.len(), 1);
    scene.refuses.set(false);
    let changes = {
        daemon.learner.observe(&connections(1)[0]);
        daemon.learner.decide(at(2))
    };
    daemon.apply(&changes).unwrap();
    assert!(daemon.unremoved.is_empty());
}

#[test]
fn status_and_explain_show_what_is_in_force() {
    let place = Place::new("outcome");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, NO_CONTROL);
    scene.open.replace(connections(2));
    scene.refuses.set(true);
    daemon.round(at(1));
    let outcome = |known: &serde_json::Value| (known["in_force"].clone(), known["outcome"].clone());
    let known = daemon.answer(&Request::Status {})["destinations"][0].take();
    assert_eq!(outcome(&known), (json!(false), json!("failed")));
    scene.refuses.set(false);
    (2..12).for_each(|second| daemon.round(at(second)));
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let known = daemon.answer(&Request::Explain { address })["destination"].take();
    assert_eq!(outcome(&known), (json!(true), json!("done")));
}

#[test]
fn lent_rate_comes_from_the_actuator() {
    let place = Place::new("lent");
    let scene = Rc::new(Scene::default());
    let mut daemon = place.daemon(&scene, "[learn]\nmode = \"paced\"");
    scene.open.replace(connections(2));
    daemon.round(at(1));
    let lent = |daemon: &mut Daemon| {
        let known = daemon.answer(&Request::Status {})["destinations"][0].take();
        known["lent_mbps"].clone()
    };
    assert_eq!(lent(&mut daemon), json!(null));
    scene.lent_mbps.set(Some(3.5));
    assert_eq!(lent(&mut daemon), json!(3.5));
}

#[test]
fn hints_of_the_file_hold_until_it_changes() {
    let place = Place::new("hints");
    let scene = Rc::new(Scene::default());
    let file = place.0.join("hints.toml");
    let mut daemon = place.daemon(&scene, &format!("hints = {file:?}"));
    scene.open.replace(connections(1));
    let mut window = |second| {
        daemon.round(at(second));
        daemon.answer(&Request::Status {})["destinations"][0]["window_segments"].take()
    };
    assert_eq!(window(1), 50);
    std::fs::write(&file, "[[hint]]\nwithin = \"10.0.0.0/8\"\nat_most = 20\n").unwrap();
    assert_eq!(window(2), 20);
    std::fs::write(&file, "at_most = 30\n").unwrap();
    assert_eq!(window(3), 20, "the last good one");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(window(4), 50);
}
