//! Parses the JSON that commands print, and compares it with its schema in docs/schemas.

#![allow(dead_code, reason = "not every test program uses both functions")]

use serde_json::Value;

/// Parses a document, which must be as its schema says.
///
/// A field without description fails too: docs/schemas permits new fields, so that programs ignore those that they do
/// not know, but our own must be there.
pub(crate) fn parse(text: impl AsRef<[u8]>) -> Value {
    let text = text.as_ref();
    let shown = || String::from_utf8_lossy(text);
    let document: Value = serde_json::from_slice(text).unwrap_or_else(|error| panic!("{error} in {}", shown()));
    // A listing has the form of another program's file, which is a list.
    let named = document.get(0).unwrap_or(&document);
    let id = named["schema"].as_str().unwrap_or_else(|| panic!("no schema is named in {}", shown()));
    let name = id.strip_prefix("telpher.").and_then(|name| name.split_once('/')).expect("telpher.NAME/VERSION").0;
    let path = format!("{}/../../docs/schemas/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let schema = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut schema: Value = serde_json::from_slice(&schema).unwrap_or_else(|error| panic!("{path}: {error}"));
    forbid_other_fields(&mut schema);
    let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{path}: {error}"));
    let errors: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "not as {path} says: {errors:#?}\nin {}", shown());
    document
}

/// Parses a document, and returns the list in one of its fields.
pub(crate) fn list(text: impl AsRef<[u8]>, field: &str) -> Vec<Value> {
    match parse(text)[field].take() {
        Value::Array(elements) => elements,
        other => panic!("{field} is {other}, not a list"),
    }
}

/// Lets a schema refuse fields that it does not name.
fn forbid_other_fields(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.contains_key("properties") && !members.contains_key("additionalProperties") {
                members.insert("additionalProperties".into(), false.into());
            }
            members.values_mut().for_each(forbid_other_fields);
        }
        Value::Array(elements) => elements.iter_mut().for_each(forbid_other_fields),
        _ => {}
    }
}
