//! Self-contained pages, without scripts or external resources.

use crate::table::Table;

/// Returns a whole page with this body.
#[must_use]
pub fn document(name: &str, body: &str) -> String {
    let name = escape(name);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Tradewind: {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Tradewind <small>{name}</small></h1>\n{body}\n</body>\n</html>\n"
    )
}

/// Returns the conditions of a run as a list.
#[must_use]
pub fn conditions(assumptions: &[String]) -> String {
    let lines: String =
        assumptions.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    format!("<h2>Conditions</h2>\n<ul>{lines}</ul>")
}

/// Escapes the special characters of HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a table.
#[must_use]
pub fn table(table: &Table) -> String {
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
