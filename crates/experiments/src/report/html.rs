//! The report as one self-contained page: figures, bars and a map, without scripts or external
//! resources.

use std::fmt::Write as _;

use super::table::Table;
use super::{DemoReport, FlowResult, map, table};
use crate::experiment::Record;

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
        table = html_table(report),
        conditions = conditions(&report.assumptions),
    );
    document(&report.name, &body)
}

/// Returns a whole page with this body.
fn document(name: &str, body: &str) -> String {
    let name = escape(name);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Tradewind: {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Tradewind <small>{name}</small></h1>\n{body}\n</body>\n</html>\n"
    )
}

fn conditions(assumptions: &[String]) -> String {
    let lines: String =
        assumptions.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    format!("<h2>Conditions</h2>\n<ul>{lines}</ul>")
}

/// Renders records of experiments as one document: plots, figures, findings, conditions.
#[must_use]
pub fn records_page(records: &[Record]) -> String {
    let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
    let body: String = records.iter().map(record_section).collect();
    document(&names.join(", "), &body)
}

fn record_section(record: &Record) -> String {
    let mut out = format!("<h2>{}</h2>\n", escape(&record.name));
    for reason in &record.invalid_because {
        let _ = writeln!(out, "<p class=\"invalid\">The run is invalid: {}</p>", escape(reason));
    }
    for chart in record.charts() {
        out.push_str(&chart.svg());
    }
    for table in table::record(record) {
        let _ = writeln!(out, "<h3>{}</h3>\n{}", escape(&table.0), layout(&table.1));
    }
    out.push_str(&conditions(&record.assumptions));
    out
}

/// Escapes the special characters of HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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

fn html_table(report: &DemoReport) -> String {
    layout(&table::flows(report))
}

fn layout(table: &Table) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let body: String = table.rows.iter().map(|cells| row("td", cells)).collect();
    format!(
        "<div class=\"wide\"><table><thead>{}</thead><tbody>{body}</tbody></table></div>",
        row("th", &table.heading)
    )
}

/// The style sheet. Its colours can be distinguished by colour-blind readers (Okabe and Ito).
const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b2733;--paper:#fbfcfd;--soft:#d9e1e8;--sea:#eef3f7;
 --direct:#e69f00;--planned:#0072b2;--relay:#009e73}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#10161c;--soft:#2c3844;
 --sea:#151d25;--planned:#56b4e9}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
 max-width:60rem;margin:2rem auto;padding:0 1rem}
h1 small{font-weight:400;opacity:.6}
.figures{display:flex;flex-wrap:wrap;gap:2rem;margin:1rem 0}
.figures strong{display:block;font-size:1.9rem}
.figures span{opacity:.7}
.map{width:100%;background:var(--sea);border-radius:8px}.land{fill:var(--soft)}
.map path{fill:none;stroke-width:.7;opacity:.75}
.relayed{stroke:var(--planned)}
.direct{stroke:var(--direct);stroke-dasharray:2 1}
.site{fill:var(--ink)}
.relay{fill:var(--relay)}
.candidate{fill:none;stroke:var(--ink);stroke-width:.4;opacity:.6}
.map text{font-size:5px;fill:var(--ink)}
.bars{width:100%}
.bars text{font-size:13px;fill:var(--ink)}
.bars .value{font-size:11px}
rect.bar-direct{fill:var(--direct)}
rect.bar-planned{fill:var(--planned)}
line.tick{stroke:var(--ink);stroke-width:2}
.legend i{display:inline-block;width:1.2em;height:.8em;margin-left:1em}
i.bar-direct{background:var(--direct)}
i.bar-planned{background:var(--planned)}
i.tick{width:3px;background:var(--ink)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem}
td,th{padding:.3rem .6rem;border-bottom:1px solid var(--soft);text-align:right;white-space:nowrap}
td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}tbody tr:last-child{font-weight:600}
.invalid{color:#d55e00;font-weight:600}
";

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
