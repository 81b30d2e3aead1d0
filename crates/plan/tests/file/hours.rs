//! Relay types by hour, place and number.

use super::*;

#[test]
fn relay_types_have_hours_and_places() {
    let text = SMALL
        .replacen("[\"gcp:europe-west2\"]", "[\"gcp:europe-west2\", \"aws:us-east-1\"]", 1)
        .replacen(
            "budget_usd = 2.0",
            "budget_usd = 2.0\nassume_rtt_from_distance = true\nperiod = \"90 min\"",
            1,
        );
    let placed = |site: &str, text: &str| {
        text.replacen(
            &format!("id = \"{site}\""),
            &format!("id = \"{site}\"\nlocation = {{ latitude = 50, longitude = 0 }}"),
            1,
        )
    };
    let text = placed("a", &placed("b", &text));
    let text = format!(
        "{text}[[relay_type]]\nid = \"big\"\ncapacity = \"2 Gbit/s\"\nset_up_usd = 0.1\n\
         usd_per_hour = 0.3\nclouds = [\"aws\"]\nmost = 2\n\
         [[relay_type]]\nid = \"small\"\ncapacity = \"1 Gbit/s\"\n\
         usd_per_hour = 0.2\nregions = [\"gcp:europe-west2\"]\n"
    );
    let read = read(&text).unwrap();
    assert_eq!(read.paid_hours, Some(2));
    let set_up: Vec<f64> =
        read.inputs.relay_types.iter().map(|known| known.set_up.as_usd()).collect();
    assert_eq!(set_up, [0.7, 0.4]);
    assert!(read.inputs.hourly.is_empty());
    let problem = Problem::new(read.inputs).unwrap();
    for offer in problem.offers() {
        let is_there = (offer.region.cloud() == "aws") == (offer.relay_type.id.as_str() == "big");
        assert_eq!(offer.is_offered, is_there, "{offer:?}");
        let is_big = offer.relay_type.id.as_str() == "big";
        assert_eq!(offer.most, is_big.then_some(2), "{offer:?}");
    }
    let passed = |candidate: &tradewind_plan::Candidate| {
        candidate.relays.iter().all(|relay| problem.offers()[*relay].is_offered)
    };
    assert!(problem.candidates(0).iter().all(passed));
    assert!(problem.candidates(0).len() > 1, "some relay is had");
    let many = refusal_of_too_many(&text);
    assert!(many.contains("0 to 10000, not 20000"), "{many}");
}

fn refusal_of_too_many(text: &str) -> String {
    read(&text.replacen("most = 2\n", "most = 20000\n", 1)).unwrap_err().to_string()
}

#[test]
fn hours_without_a_period_are_those_of_the_plan() {
    let text = format!(
        "{SMALL}[[relay_type]]\nid = \"big\"\ncapacity = \"2 Gbit/s\"\nset_up_usd = 0.1\n\
         usd_per_hour = 0.3\n[[relay_type]]\nid = \"own\"\ncapacity = \"1 Gbit/s\"\n"
    );
    let inputs = read(&text).unwrap().inputs;
    assert_eq!(inputs.relay_types[0].set_up.as_usd(), 0.1);
    let hourly: Vec<_> =
        inputs.hourly.iter().map(|(id, price)| (id.as_str(), price.as_usd())).collect();
    assert_eq!(hourly, [("big", 0.3)]);
    assert_eq!(read(&text).unwrap().paid_hours, None);
}
