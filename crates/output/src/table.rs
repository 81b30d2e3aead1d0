//! Tables for people: aligned columns, numbers to the right, no colour.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, TableStyle};

/// A table: a heading and its rows, all of the same width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub heading: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

/// Prints a table; columns from `first_number` on are aligned to the right.
///
/// # Errors
/// When standard output cannot be written.
pub fn print<H: AsRef<str>>(
    heading: &[H],
    rows: &[Vec<String>],
    first_number: usize,
) -> anyhow::Result<()> {
    super::line(text(heading, rows, first_number, comfy_table::Table::new().width()))
}

/// Least width in columns that a table is folded to. Chosen: below it, lines of a few letters each
/// are less readable than lines broken by the terminal; terminals that know no width report 0.
const MIN_WIDTH: u16 = 20;

/// One rule under the heading, none between rows.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('\u{2500}').junction('\u{2500}'));

/// Returns what [`print()`] prints where the terminal has this width, or none.
#[must_use]
pub fn text<H: AsRef<str>>(
    heading: &[H],
    rows: &[Vec<String>],
    first_number: usize,
    width: Option<u16>,
) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(STYLE);
    match width.filter(|width| *width >= MIN_WIDTH) {
        Some(width) => {
            table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    let aligned = |column: usize, text: &str| {
        let side = if column < first_number { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(text).set_alignment(side)
    };
    let cells = |texts: &mut dyn Iterator<Item = &str>| -> Vec<Cell> {
        texts.enumerate().map(|(column, text)| aligned(column, text)).collect()
    };
    table.set_header(cells(&mut heading.iter().map(AsRef::as_ref)));
    for row in rows {
        table.add_row(cells(&mut row.iter().map(String::as_str)));
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_heading_has_a_rule_under_it() {
        let rows = [["hamina", "1"], ["tokyo", "2"]].map(|row| row.map(str::to_owned).to_vec());
        let table = text(&["site", "relays"], &rows, 1, None);
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(lines[1].trim_matches('\u{2500}'), "", "{table}");
        assert_eq!((lines.len(), lines[2].trim()), (4, "hamina        1"), "{table}");
    }

    #[test]
    fn terminal_without_width_gets_whole_lines() {
        let rows = [vec!["hamina".to_owned(), "a path over two relays".to_owned()]];
        let lines = |width| text(&["site", "path"], &rows, 1, width).lines().count();
        let whole = lines(None);
        for width in [0, 1, 19, 200] {
            assert_eq!(lines(Some(width)), whole, "{width} columns");
        }
        assert!(lines(Some(24)) > whole, "a narrow one folds");
    }
}
