//! Plans that are only asked about: who may ask, what is answered, what is refused.

use serde_json::{Value, json};

use super::Running;
use crate::view::{Front, PlanView, SettingsView, Status, SupposedView};
use crate::{Client, ClientError};

/// Checks the answers over an overlay with one relay in effect, whose plan is `plan`.
pub(super) fn plans_are_asked_about(running: &Running, plan: &PlanView) {
    let reader = running.client_of(running.folder.reader().unwrap());
    let before: (Status, PlanView) =
        (reader.get("/v1/status").unwrap(), reader.get("/v1/plans/newest").unwrap());
    let ask = |asked: Value| reader.post::<SupposedView>("/v1/what-if", &asked);
    let nothing = ask(json!({})).unwrap().supposed;
    assert_eq!((nothing.moves, nothing.present.relays, nothing.plan.relays), (0, 1, 1));
    assert!(nothing.present.seconds_saved > 0.0 && nothing.usd_more.abs() < 1e-6, "{nothing:?}");
    let without = ask(json!({ "without": ["gcp:*"] })).unwrap().supposed;
    assert_eq!((without.moves, without.plan.relays), (1, 0));
    assert!(without.usd_more < 0.0 && without.seconds_saved_more < 0.0, "{without:?}");
    let dear = json!({ "prices": [{ "from": "gcp:*", "times": 2 }], "budget_usd_per_day": 500 });
    let dear = ask(dear).unwrap().supposed;
    assert!(dear.moves == 0 && dear.usd_more > 1.0, "{dear:?}");
    for wrong in [
        json!({ "without": ["aws:*"] }),
        json!({ "without": vec!["gcp:*"; 101] }),
        json!({ "prices": [{ "from": "*", "times": 1e9 }] }),
        json!({ "volumes": [{ "flow": "none", "times": 2 }] }),
        json!({ "volumes": [{ "times": 0 }] }),
        json!({ "budget_usd_per_day": -1 }),
        json!({ "apply": true }),
    ] {
        let refused = ask(wrong.clone()).unwrap_err();
        assert!(matches!(refused, ClientError::Refused { status: 400, .. }), "{wrong}: {refused}");
    }
    let after = (reader.get("/v1/status").unwrap(), reader.get("/v1/plans/newest").unwrap());
    assert_eq!(before, after, "what is asked changes nothing");
    front_is_kept(running, &reader, plan);
}

/// Checks the front, and that it is computed again only where something has changed.
fn front_is_kept(running: &Running, reader: &Client, plan: &PlanView) {
    let get = || reader.get::<Front>("/v1/front").unwrap();
    let front = get();
    let (first, last) = (front.points[0], front.points[front.points.len() - 1]);
    assert_eq!((first.budget_usd_per_day.as_usd(), first.worth.relays), (0.0, 0));
    assert_eq!((last.budget_usd_per_day, last.worth.relays), (front.budget_usd_per_day, 1));
    assert_eq!(last.worth.usd_per_day, plan.record.usd_per_day);
    assert_eq!(get(), front, "nothing has changed");
    let budget = |usd: f64| {
        let settings = json!({ "budget_usd_per_day": usd });
        let _: SettingsView = running.client().put("/v1/settings", &settings).unwrap();
    };
    budget(200.0);
    assert_eq!(get().budget_usd_per_day.as_usd(), 200.0);
    budget(front.budget_usd_per_day.as_usd());
}

#[test]
fn without_flows_there_is_nothing_to_ask() {
    let place = crate::testing::TestFolder::new("asking");
    let running = Running::new(&place);
    let reader = running.client_of(running.folder.reader().unwrap());
    let refused = [
        reader.get::<Front>("/v1/front").unwrap_err(),
        reader.post::<SupposedView>("/v1/what-if", &json!({})).unwrap_err(),
    ];
    for refused in refused {
        assert!(matches!(refused, ClientError::Refused { status: 409, .. }), "{refused}");
        assert_eq!(refused.to_string(), "no flow is declared");
    }
}
