//! Tables for programs: CSV (RFC 4180) of what JSON holds, with the same names.

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;

/// Prints rows as CSV. A column is the name of a field of the row's JSON, or names joined by dots
/// of fields within fields. What is absent is empty; the elements of a list are joined by spaces.
/// A text that a spreadsheet would take for a formula begins with `'`.
///
/// # Errors
/// When standard output cannot be written.
pub fn print<R: Serialize>(columns: &[&str], rows: &[R]) -> anyhow::Result<()> {
    super::line(written(columns, rows)?.trim_end())
}

/// Returns one row as a line of the same form, without its end: for a table that never ends.
///
/// # Errors
/// When the row has no JSON.
pub fn row<R: Serialize>(columns: &[&str], row: &R) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    write(&mut writer, columns, row)?;
    Ok(text(writer)?.trim_end().to_owned())
}

fn written<R: Serialize>(columns: &[&str], rows: &[R]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(columns)?;
    rows.iter().try_for_each(|row| write(&mut writer, columns, row))?;
    text(writer)
}

fn write<R: Serialize>(
    writer: &mut csv::Writer<Vec<u8>>,
    columns: &[&str],
    row: &R,
) -> anyhow::Result<()> {
    let row = serde_json::to_value(row)?;
    writer.write_record(columns.iter().map(|column| cell(field(&row, column))))?;
    Ok(())
}

fn text(writer: csv::Writer<Vec<u8>>) -> anyhow::Result<String> {
    let bytes = writer.into_inner().context("a table in memory")?;
    Ok(String::from_utf8(bytes)?)
}

/// Returns the field of a row that `column` names; null if there is none.
fn field<'a>(row: &'a Value, column: &str) -> &'a Value {
    column.split('.').fold(row, |value, name| &value[name])
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        // A spreadsheet would take it for a formula.
        Value::String(text) if text.starts_with(['=', '+', '-', '@', '\t', '\r']) => {
            format!("'{text}")
        }
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_those_of_the_json() {
        let rows = [
            json!({ "name": "a, b", "speedup": { "low": 1.5 }, "path": ["x", "y"], "is": true }),
            json!({ "name": "=c", "speedup": { "low": -1 }, "path": [] }),
        ];
        let text = written(&["name", "speedup.low", "path", "is"], &rows).unwrap();
        assert_eq!(text, "name,speedup.low,path,is\n\"a, b\",1.5,x y,true\n'=c,-1,,\n");
        assert_eq!(row(&["name", "speedup.low"], &rows[0]).unwrap(), "\"a, b\",1.5");
    }

    #[test]
    fn empty_table_has_its_heading() {
        assert_eq!(written::<Value>(&["a", "b.c"], &[]).unwrap(), "a,b.c\n");
    }
}
