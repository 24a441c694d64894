//! JSON that keeps the order of keys, which matters in accel-config's files: they are settings, made one after another.

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Json {
    Null,
    Flag(bool),
    /// As text, decimal.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Object),
}

/// Keys and values in file order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Object(pub(crate) Vec<(String, Json)>);

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
    fn keys_stay_in_file_order() {
        let json: Json = serde_json::from_str(r#"{"size":16,"mode":"shared","a":[true,null,-1],"b":{}}"#).unwrap();
        let Json::Object(object) = json else { panic!("an object") };
        let keys: Vec<&str> = object.0.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["size", "mode", "a", "b"]);
        assert_eq!(object.get("size"), Some(&Json::Number("16".into())));
        assert_eq!(object.get("a"), Some(&Json::List(vec![Json::Flag(true), Json::Null, Json::Number("-1".into())])));
        assert_eq!(object.get("none"), None);
    }
}
