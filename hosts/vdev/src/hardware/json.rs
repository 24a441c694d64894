//! JSON as in accel-config's files. The order of keys matters, because they are applied as settings one after another.
//! A list may end with a comma, as in some of the packaged files.

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Json {
    Null,
    Flag(bool),
    /// As decimal text.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Object),
}

/// Keys and values in file order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Object(pub(crate) Vec<(String, Json)>);

impl Json {
    /// Parses a text.
    pub(crate) fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(&without_last_commas(text))
    }
}

/// Replaces the commas before closing brackets by blanks, so that lines and columns in errors stay correct.
fn without_last_commas(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (mut comma, mut quoted, mut escaped) = (None, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b',' => comma = Some(at),
            b']' | b'}' => {
                if let Some(comma) = comma.take() {
                    bytes[comma] = b' ';
                }
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                comma = None;
                quoted = byte == b'"';
            }
        }
    }
    // A comma and a blank are one byte each, and never part of a longer character.
    String::from_utf8(bytes).unwrap_or_else(|_| text.into())
}

impl Object {
    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Json;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Flag(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object = Object::default();
        while let Some(entry) = entries.next_entry()? {
            object.0.push(entry);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_end_with_a_comma() {
        let read = |text| Json::read(text).ok();
        assert_eq!(read(r#"[{"a":"x,]\",}",},1, ]"#), read(r#"[{"a":"x,]\",}"},1]"#));
        assert!(read(r#"[1,]"#).is_some() && read("[1\n,\n]").is_some());
        for text in ["[1,,]", "[1,", "[", "1,"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn keys_stay_in_file_order() {
        let json = Json::read(r#"{"size":16,"mode":"shared","a":[true,null,-1],"b":{}}"#).unwrap();
        let Json::Object(object) = json else { panic!("an object") };
        let keys: Vec<&str> = object.0.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["size", "mode", "a", "b"]);
        assert_eq!(object.get("size"), Some(&Json::Number("16".into())));
        assert_eq!(object.get("a"), Some(&Json::List(vec![Json::Flag(true), Json::Null, Json::Number("-1".into())])));
        assert_eq!(object.get("none"), None);
    }
}
