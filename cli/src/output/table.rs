//! Tables for people: aligned columns, numbers to the right, no colour.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// Prints a table; columns from `first_number` on are aligned to the right.
pub(crate) fn print<H: AsRef<str>>(
    heading: &[H],
    rows: &[Vec<String>],
    first_number: usize,
) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic);
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
    super::line(table)
}
