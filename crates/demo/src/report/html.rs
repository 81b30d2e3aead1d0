//! The report as one self-contained page: figures, bars and a map, without scripts or external
//! resources.

use std::fmt::Write as _;

use tradewind_output::html;
use tradewind_output::html::escape;

use super::{DemoReport, FlowResult, map, table};

/// Renders the report as an HTML document.
#[must_use]
pub fn page(report: &DemoReport) -> String {
    let validity = if report.valid {
        "<p class=\"valid\">The lab kept time: the run is valid.</p>".to_owned()
    } else {
        let reasons = escape(&report.reasons());
        format!("<p class=\"invalid\">The run is invalid: {reasons}</p>")
    };
    let body = format!(
        "{headline}\n{validity}\n{map}\n\
         <h2>Flow completion times</h2>\n{LEGEND}\n{bars}\n\
         <h2>Figures</h2>\n{table}\n{conditions}",
        headline = headline(report),
        map = map::svg(report),
        bars = bars(report),
        table = html::table(&table::flows(report)),
        conditions = html::conditions(&report.assumptions),
    );
    html::document(&report.name, &body)
}

fn headline(report: &DemoReport) -> String {
    let [direct, planned, ..] = report.totals();
    let figure = |value: String, what: &str| {
        format!("<div><strong>{value}</strong><span>{what}</span></div>")
    };
    format!(
        "<div class=\"figures\">{}{}{}{}</div>",
        figure(format!("{:.2}x", report.acceleration), "measured acceleration"),
        figure(format!("{:.2}x", report.acceleration_predicted), "predicted before any transfer"),
        figure(format!("{direct:.1} s &rarr; {planned:.1} s"), "total flow completion time"),
        figure(
            format!("${:.2}", report.cost_usd),
            &format!("of a budget of ${:.2}", report.budget_usd)
        ),
    )
}

const LEGEND: &str = "<p class=\"legend\"><i class=\"bar-direct\"></i> direct \
     <i class=\"bar-planned\"></i> over its path <i class=\"tick\"></i> predicted</p>";

/// Geometry of the bars, in pixels.
const ROW: f64 = 44.0;
const LABEL: f64 = 190.0;
const BAR: f64 = 520.0;

fn bars(report: &DemoReport) -> String {
    let longest = report
        .flows
        .iter()
        .flat_map(|flow| [flow.fct_direct_s, flow.fct_planned_s, flow.predicted_direct_s])
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut out = format!(
        "<svg class=\"bars\" viewBox=\"0 0 {} {}\" role=\"img\" \
         aria-label=\"Completion time of every flow\">",
        LABEL + BAR + 70.0,
        ROW * report.flows.len() as f64
    );
    for (index, flow) in report.flows.iter().enumerate() {
        out.push_str(&flow_bars(flow, index as f64 * ROW, BAR / longest));
    }
    out.push_str("</svg>");
    out
}

fn flow_bars(flow: &FlowResult, top: f64, px_per_s: f64) -> String {
    let title = format!(
        "<title>{}</title>",
        escape(&format!(
            "{} to {}: {}",
            flow.source,
            flow.destination,
            table::path_text(&flow.path)
        ))
    );
    let mut out = format!(
        "<g>{title}<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} &rarr; {}</text>",
        LABEL - 10.0,
        top + 24.0,
        escape(&flow.source),
        escape(&flow.destination)
    );
    let rows = [
        ("bar-direct", 6.0, flow.fct_direct_s, flow.predicted_direct_s),
        ("bar-planned", 22.0, flow.fct_planned_s, flow.predicted_planned_s),
    ];
    for (class, offset, measured, predicted) in rows {
        let y = top + offset;
        let width = measured * px_per_s;
        let tick = LABEL + predicted * px_per_s;
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{LABEL}\" y=\"{y}\" width=\"{width:.1}\" height=\"13\"/>\
             <line class=\"tick\" x1=\"{tick:.1}\" x2=\"{tick:.1}\" y1=\"{}\" y2=\"{}\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{}\">{measured:.2} s</text>",
            y - 2.0,
            y + 15.0,
            LABEL + width.max(predicted * px_per_s) + 6.0,
            y + 11.0
        );
    }
    out.push_str("</g>");
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn page_is_self_contained() {
        let page = page(&sample());
        for outside in ["http://", "https://", "<script", "<img", "<link", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    #[test]
    fn user_names_are_escaped() {
        let page = page(&sample());
        assert!(page.contains("volumes are &lt;scaled&gt;"));
        assert!(!page.contains("<scaled>"));
    }

    #[test]
    fn the_longest_bar_fills_the_width() {
        assert!(page(&sample()).contains("width=\"520.0\""));
    }
}
