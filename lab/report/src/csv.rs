//! Results as CSV: the first line has the column names, each other line one result.

use serde::Serialize;
use serde_json::Value;

/// Quotes a field if it contains a separator.
#[must_use]
pub fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Returns one line for each row, with a column for each number, text and flag of the rows.
///
/// A field of a nested value has the column `outer.inner`. A list is one field, with `; ` between its elements. A value
/// that a row does not have is an empty field.
///
/// # Panics
/// If a row has keys that are not strings.
#[must_use]
pub fn rows<T: Serialize>(rows: &[T]) -> String {
    let mut columns: Vec<String> = Vec::new();
    let lines: Vec<Vec<(String, String)>> = rows
        .iter()
        .map(|row| {
            let mut fields = Vec::new();
            flatten("", &serde_json::to_value(row).expect("rows are plain data with string keys"), &mut fields);
            fields
        })
        .collect();
    for (column, _) in lines.iter().flatten() {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    let join = |fields: Vec<String>| fields.join(",") + "\n";
    let mut text = join(columns.iter().map(|column| field(column)).collect());
    for line in &lines {
        let value = |column: &String| line.iter().find(|(name, _)| name == column).map_or("", |(_, value)| value);
        text.push_str(&join(columns.iter().map(|column| field(value(column))).collect()));
    }
    text
}

/// Appends the fields of a value, each with its column.
fn flatten(column: &str, value: &Value, fields: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let inner = if column.is_empty() { name.clone() } else { format!("{column}.{name}") };
                flatten(&inner, member, fields);
            }
        }
        Value::Array(elements) => {
            fields.push((column.into(), elements.iter().map(scalar).collect::<Vec<_>>().join("; ")));
        }
        _ => fields.push((column.into(), scalar(value))),
    }
}

/// Returns a text without quotes, nothing for null, and JSON for everything else.
fn scalar(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_with_different_fields_share_the_columns() {
        let text = rows(&[
            json!({ "name": "a,b", "rate": { "mpps": 1.5 }, "list": [1, "two"], "none": null }),
            json!({ "name": "c", "more": true }),
        ]);
        let expected = "list,name,none,rate.mpps,more\n1; two,\"a,b\",,1.5,\n,c,,,true\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn quotes_and_line_breaks_stay_in_their_field() {
        assert_eq!(field("say \"x\"\nagain"), "\"say \"\"x\"\"\nagain\"");
        assert_eq!(field("plain"), "plain");
    }
}
