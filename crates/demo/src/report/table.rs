//! The report as rows of text, for a terminal.

use tradewind_output::table::Table;

use super::DemoReport;

/// Returns one row per flow and a last one with the totals; FCT is in seconds.
#[must_use]
pub fn flows(report: &DemoReport) -> Table {
    let mut rows: Vec<Vec<String>> = report
        .flows
        .iter()
        .map(|flow| {
            vec![
                format!("{} > {}", flow.source, flow.destination),
                path_text(&flow.path),
                seconds(flow.predicted_direct_s),
                seconds(flow.fct_direct_s),
                seconds(flow.predicted_planned_s),
                seconds(flow.fct_planned_s),
                format!("{:.2}x", flow.acceleration()),
                format!("{:.2}", flow.egress_usd),
                match (flow.sha256_ok, flow.valid) {
                    (false, _) => "HASH DIFFERS".into(),
                    (true, false) => "ok, lab late".into(),
                    (true, true) => "ok".into(),
                },
            ]
        })
        .collect();
    rows.push(total_row(report));
    Table {
        heading: [
            "flow",
            "path",
            "direct predicted s",
            "direct measured s",
            "path predicted s",
            "path measured s",
            "acceleration",
            "egress $",
            "content",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    }
}

fn total_row(report: &DemoReport) -> Vec<String> {
    let [direct, planned, predicted_direct, predicted_planned] = report.totals();
    let relays: u32 = report.relays.iter().map(|relay| relay.count).sum();
    let all_ok = report.flows.iter().all(|flow| flow.sha256_ok);
    vec![
        format!("total of {}", report.flows.len()),
        format!("{relays} relays"),
        seconds(predicted_direct),
        seconds(direct),
        seconds(predicted_planned),
        seconds(planned),
        format!("{:.2}x", report.acceleration),
        format!("{:.2}", report.flows.iter().map(|flow| flow.egress_usd).sum::<f64>()),
        if all_ok { "ok".into() } else { "HASH DIFFERS".into() },
    ]
}

/// Returns the lines below the table: gain, cost, conditions.
#[must_use]
pub fn summary(report: &DemoReport) -> Vec<String> {
    let mut lines = vec![
        format!(
            "acceleration {:.2}x measured, {:.2}x predicted; prediction off by {:.1} % at the \
             median, {:.0} % at most",
            report.acceleration,
            report.acceleration_predicted,
            report.prediction_error_median * 100.0,
            report.prediction_error_most * 100.0
        ),
        format!(
            "cost ${:.2} of a budget of ${:.2}, for a day of nominal volumes, relays included",
            report.cost_usd, report.budget_usd
        ),
    ];
    lines.extend(report.assumptions.iter().map(|line| format!("assumed: {line}")));
    lines.push(if report.valid {
        "the lab kept time: the run is valid".into()
    } else {
        format!("THE RUN IS INVALID: {}", report.reasons())
    });
    lines
}

/// Returns a path as text: `direct`, or its regions in order.
#[must_use]
pub fn path_text(path: &[String]) -> String {
    if path.is_empty() { "direct".into() } else { path.join(" > ") }
}

fn seconds(value: f64) -> String {
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn rows_match_the_heading_and_last_row_has_totals() {
        let table = flows(&sample());
        assert!(table.rows.iter().all(|row| row.len() == table.heading.len()));
        assert_eq!(table.rows.last().unwrap()[6], "3.00x");
        assert_eq!(table.rows[1][1], "direct");
    }

    #[test]
    fn wrong_hash_and_invalid_run_are_shown() {
        let mut report = sample();
        report.flows[0].sha256_ok = false;
        report.invalid_because.push("lateness".into());
        report.summarise();
        assert!(flows(&report).rows.iter().any(|row| row.contains(&"HASH DIFFERS".to_owned())));
        assert!(summary(&report).last().unwrap().contains("INVALID"));
    }
}
