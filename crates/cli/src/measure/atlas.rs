//! Results of ping measurements of RIPE Atlas: JSON, as a list or an object a line.

use serde_json::Value;
use tradewind_control::imported::Imported;

use super::given::{Given, summary};

/// Reads the results of one probe; those without a reply are left out.
pub(super) fn read(text: &str, given: &Given) -> Result<Vec<Imported>, String> {
    let (from, to) = given.ends()?;
    let mut probe = None;
    let mut all = Vec::new();
    for (index, result) in results(text)?.iter().enumerate() {
        let named = |problem: String| format!("[{index}].{problem}");
        if result["type"] != "ping" {
            return Err(named(format!("type: {}: expected \"ping\"", result["type"])));
        }
        let id = &result["prb_id"];
        if let Some(other) = probe.replace(id.clone()).filter(|other| other != id) {
            return Err(named(format!(
                "prb_id: {id} beside {other}: expected results of one probe (`?probe_ids=`)"
            )));
        }
        let replies = result["result"].as_array();
        let replies = replies.ok_or_else(|| named("result: expected a list".to_owned()))?;
        let times = replies.iter().filter_map(|reply| reply["rtt"].as_f64());
        let Some(rtt) = summary(times.filter(|ms| *ms > 0.0).collect()) else { continue };
        let own = result["timestamp"].as_u64().and_then(|seconds| seconds.checked_mul(1000));
        let expected = || named(format!("timestamp: {}: expected seconds", result["timestamp"]));
        let unix_ms = own.ok_or_else(expected)?;
        let (from, to) = (from.clone(), to.clone());
        all.push(Imported { from, to, unix_ms, rtt: Some(rtt), rate: None });
    }
    Ok(all)
}

fn results(text: &str) -> Result<Vec<Value>, String> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let values = values.collect::<Result<Vec<Value>, _>>().map_err(|error| error.to_string())?;
    let flat = values.into_iter().flat_map(|value| match value {
        Value::Array(list) => list,
        other => vec![other],
    });
    Ok(flat.collect())
}

#[cfg(test)]
mod tests {
    use super::super::given::tests::given;
    use super::*;

    /// As documented for firmware 5080 and later; the figures are made up.
    const LOST: &str = r#"{"fw":5080,"type":"ping","msm_id":1,"prb_id":7,"timestamp":1795785200,
        "af":4,"sent":1,"rcvd":0,"min":-1,"avg":-1,"max":-1,"result":[{"x":"*"}]}"#;
    const ANSWERED: &str = r#"{"fw":5080,"type":"ping","msm_id":1,"prb_id":7,"timestamp":1795785260,
        "af":4,"sent":3,"rcvd":2,"min":30.1,"avg":30.6,"max":31.1,
        "result":[{"rtt":31.1},{"x":"*"},{"rtt":30.1}]}"#;

    #[test]
    fn results_are_read_as_a_list_and_by_lines() {
        for text in [format!("[{LOST},{ANSWERED}]"), format!("{LOST}\n{ANSWERED}\n")] {
            let all = read(&text, &given()).unwrap();
            assert_eq!(all.len(), 1, "one has no reply");
            let rtt = all[0].rtt.unwrap();
            assert_eq!((rtt.min_ms, rtt.samples, all[0].unix_ms), (30.1, 2, 1_795_785_260_000));
        }
    }

    #[test]
    fn refusals_name_the_result_and_the_key() {
        let with = |from: &str, to: &str| {
            let text = format!("[{ANSWERED},{}]", ANSWERED.replace(from, to));
            read(&text, &given()).unwrap_err()
        };
        for (refused, expected) in [
            (with("\"ping\"", "\"dns\""), "[1].type: \"dns\": expected \"ping\""),
            (with("\"prb_id\":7", "\"prb_id\":8"), "[1].prb_id: 8 beside 7: expected"),
            (with("1795785260", "\"now\""), "[1].timestamp: \"now\": expected seconds"),
            (with("\"result\"", "\"results\""), "[1].result: expected a list"),
            (read("[", &given()).unwrap_err(), "EOF while parsing a list at line 1"),
        ] {
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
