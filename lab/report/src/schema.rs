//! The JSON of results: each names its schema, which is a file of docs/schemas.
//!
//! The version of a schema changes when a field is removed, renamed or changes its meaning. A new field keeps it.

use serde::{Serialize, Serializer};

/// The name and version of the schema of a JSON output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schema {
    name: &'static str,
    version: u32,
}

/// Declares the schemas, and the list of all.
macro_rules! schemas {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $version:literal;)*) => {
        $($(#[$doc])* pub const $constant: Schema = Schema { name: $name, version: $version };)*

        /// All schemas.
        pub const ALL: &[Schema] = &[$($constant),*];
    };
}

schemas! {
    /// `telpher advise`.
    ADVISE = "advise", 1;
    /// `telpher bench`.
    BENCH = "bench", 1;
    /// The subcommands of `telpher bench` that answer questions, such as `telpher bench mover`.
    BENCH_ANSWERS = "bench-answers", 1;
    /// `telpher bench cachelike`.
    BENCH_CACHELIKE = "bench-cachelike", 1;
    /// `telpher bench fabric`.
    BENCH_FABRIC = "bench-fabric", 1;
    /// `telpher bench ops`.
    BENCH_OPS = "bench-ops", 1;
    /// `telpher bench pollution`.
    BENCH_POLLUTION = "bench-pollution", 1;
    /// `telpher bench query`.
    BENCH_QUERY = "bench-query", 1;
    /// `telpher bench run`.
    BENCH_RUN = "bench-run", 1;
    /// `telpher bench vhost`.
    BENCH_VHOST = "bench-vhost", 1;
    /// `telpher doctor`.
    DOCTOR = "doctor", 1;
    /// `telpher doctor --causes`.
    DOCTOR_CAUSES = "doctor-causes", 1;
    /// `telpher list`.
    LIST = "list", 1;
    /// `telpher nvmf bench ADDRESS`.
    NVMF_BENCH = "nvmf-bench", 1;
    /// `telpher nvmf bench` with servers of its own.
    NVMF_BENCH_LOOPS = "nvmf-bench-loops", 1;
    /// `telpher nvmf ctl show`.
    NVMF_SHOW = "nvmf-show", 1;
    /// `telpher nvmf ctl statistics`.
    NVMF_STATISTICS = "nvmf-statistics", 1;
    /// `telpher nvmf ctl top`.
    NVMF_TOP = "nvmf-top", 1;
    /// `telpher offload`.
    OFFLOAD = "offload", 1;
    /// `telpher offload top`.
    OFFLOAD_TOP = "offload-top", 1;
    /// `telpher qdp`.
    QDP = "qdp", 1;
    /// `telpher qdp --profile` with a query or data.
    QDP_PLAN = "qdp-plan", 1;
    /// `telpher qdp --profile`.
    QDP_THESIS = "qdp-thesis", 1;
    /// `telpher record predict`.
    RECORD_PREDICT = "record-predict", 1;
    /// `telpher record show`.
    RECORD_SHOW = "record-show", 1;
    /// A file of `telpher sim figures`.
    SIM_FIGURE = "sim-figure", 1;
    /// `telpher sim figures`.
    SIM_FIGURES = "sim-figures", 1;
    /// `telpher sim run`.
    SIM_RUN = "sim-run", 1;
    /// `telpher sim validate`.
    SIM_VALIDATE = "sim-validate", 1;
    /// `telpher advise` and `telpher sim run` for tenants.
    TENANTS = "tenants", 1;
    /// `telpher tier run`.
    TIER_RUN = "tier-run", 1;
    /// `telpher tier top`.
    TIER_TOP = "tier-top", 1;
    /// `telpher top`.
    TOP = "top", 1;
    /// `telpher trace --summary`.
    TRACE_SUMMARY = "trace-summary", 1;
    /// `telpher tune`.
    TUNE = "tune", 1;
    /// `telpher vhost`.
    VHOST = "vhost", 1;
    /// `telpher vhost --show-features`.
    VHOST_FEATURES = "vhost-features", 1;
}

impl Schema {
    /// Returns the name of its file without `.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the text that a document has as `schema`.
    #[must_use]
    pub fn id(self) -> String {
        format!("telpher.{}/{}", self.name, self.version)
    }

    /// Returns a result as an indented document.
    ///
    /// # Panics
    /// If the result is not an object with string keys.
    pub fn pretty<T: Serialize + ?Sized>(self, result: &T) -> String {
        serde_json::to_string_pretty(&self.document(result)).expect("results are objects with string keys") + "\n"
    }

    /// Returns a result as a document of one line, without its end.
    ///
    /// # Panics
    /// If the result is not an object with string keys.
    pub fn line<T: Serialize + ?Sized>(self, result: &T) -> String {
        serde_json::to_string(&self.document(result)).expect("results are objects with string keys")
    }

    /// Returns a list of which each element names the schema, for a format in which other programs expect a list.
    ///
    /// # Panics
    /// If an element is not an object with string keys.
    pub fn pretty_each<T: Serialize>(self, elements: &[T]) -> String {
        let documents: Vec<_> = elements.iter().map(|element| self.document(element)).collect();
        serde_json::to_string_pretty(&documents).expect("results are objects with string keys") + "\n"
    }

    fn document<T: ?Sized>(self, result: &T) -> Document<'_, T> {
        Document { schema: self.id(), result }
    }
}

/// A result with the schema that describes it.
#[derive(Serialize)]
struct Document<'a, T: ?Sized> {
    schema: String,
    #[serde(flatten)]
    result: &'a T,
}

/// A list as the only field of an object, because a list has no place for the name of a schema.
#[derive(Clone, Copy, Debug)]
pub struct List<'a, T> {
    /// The field's name.
    pub name: &'static str,
    /// The list.
    pub elements: &'a [T],
}

impl<T: Serialize> Serialize for List<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.name, self.elements)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[derive(Serialize)]
    struct Numbers {
        first: f64,
        second: Option<u64>,
    }

    #[test]
    fn the_schema_is_the_first_field_of_a_document() {
        let numbers = Numbers { first: f64::NAN, second: None };
        assert_eq!(TUNE.line(&numbers), r#"{"schema":"telpher.tune/1","first":null,"second":null}"#);
        assert!(TUNE.pretty(&numbers).starts_with("{\n  \"schema\": \"telpher.tune/1\",\n  \"first\""));
    }

    #[test]
    fn a_list_becomes_a_field_or_each_element_names_the_schema() {
        let list = List { name: "processes", elements: &[1, 2] };
        assert_eq!(OFFLOAD.line(&list), r#"{"schema":"telpher.offload/1","processes":[1,2]}"#);
        let each: serde_json::Value = serde_json::from_str(&LIST.pretty_each(&[list])).unwrap();
        assert_eq!(each, serde_json::json!([{ "schema": "telpher.list/1", "processes": [1, 2] }]));
    }

    #[test]
    fn every_schema_has_a_file_with_its_name_and_version() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas");
        let page = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
        for schema in ALL {
            assert!(page.contains(&format!("| [{}]({}.json) |", schema.id(), schema.name)), "{}", schema.id());
            let path = format!("{folder}/{}.json", schema.name);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let file: serde_json::Value = serde_json::from_str(&text).unwrap();
            let document = if *schema == LIST { &file["items"] } else { &file };
            assert_eq!(document["properties"]["schema"]["const"], schema.id(), "{path}");
        }
        let names: BTreeSet<&str> = ALL.iter().map(|schema| schema.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
