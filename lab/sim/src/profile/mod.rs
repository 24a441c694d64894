//! Profiles: machines as TOML files, with a source for each number.

mod memory;
mod section;
mod software;
mod translation;

use crate::machine::{
    DeviceCosts, Libraries, LibraryCosts, Machine, OpCost, OpCosts, SYNTHETIC, SubmitCosts, WaitCosts,
};
use crate::picos::Picos;
pub(crate) use section::{Layer, Section, Source};
use telpher_abi::Opcode;
use toml::de::DeTable;

/// Why a profile cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It is not TOML.
    #[error("{file} is not a profile: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// The parser's message, which names the line.
        what: String,
    },
    /// A parameter is missing.
    #[error("{file}, line {line}: {key} is missing; it must be {expected}")]
    Missing {
        /// The file.
        file: String,
        /// Line in which its table begins.
        line: usize,
        /// The parameter.
        key: String,
        /// The values that are possible.
        expected: String,
    },
    /// The value of a parameter is not possible.
    #[error("{file}, line {line}: {key} {what}")]
    Impossible {
        /// The file.
        file: String,
        /// The line of the value.
        line: usize,
        /// The parameter.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// An unknown parameter.
    #[error("{file}, line {line}: {key} is not a parameter; known there: {known}")]
    Unknown {
        /// The file.
        file: String,
        /// The line of the key.
        line: usize,
        /// The unknown key.
        key: String,
        /// The keys that are known in its table.
        known: String,
    },
}

/// Profiles that come with telpher: name and text.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("spr-asplos", include_str!("../../profiles/spr-asplos.toml")),
    ("xeon-max-9468", include_str!("../../profiles/xeon-max-9468.toml")),
    ("xeon-8471n", include_str!("../../profiles/xeon-8471n.toml")),
    ("gold-6430", include_str!("../../profiles/gold-6430.toml")),
    ("ice-lake-cbdma", include_str!("../../profiles/ice-lake-cbdma.toml")),
];

/// A template for a profile: a valid file with a comment for each parameter.
pub const TEMPLATE: &str = include_str!("../../profiles/template.toml");

impl Machine {
    /// The machine of a built-in profile.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Machine> {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        // The tests read every one of them.
        Machine::parse(name, text).ok()
    }

    /// Reads a profile; `file` is its name in errors. Keys that it does not set come from the built-in profile that it
    /// names as its `base`.
    ///
    /// # Errors
    /// Names file, line and key of a missing, impossible or unknown value.
    pub fn parse(file: &str, text: &str) -> Result<Machine, ProfileError> {
        Machine::changed(file, text, "")
    }

    /// Reads a profile with changed parameters: TOML, such as `submit.enqcmd_ns = 300`, one per line.
    ///
    /// # Errors
    /// As [`parse`](Machine::parse); an error in a change names `--set` as the file.
    pub fn changed(file: &str, text: &str, changes: &str) -> Result<Machine, ProfileError> {
        let changes = Source { file: "--set", text: changes };
        read(&[changes, Source { file, text }], BUILT_IN)
    }
}

/// Reads layers of text: each takes precedence over the next, and the last over its base.
fn read<'a>(layers_given: &[Source<'a>], built_in: &[(&'a str, &'a str)]) -> Result<Machine, ProfileError> {
    let (file, over) = layers_given.split_last().expect("a text to read");
    // Without changes there is no layer for them. An empty profile is a layer, in which everything is missing.
    let over = over.iter().filter(|source| !source.text.is_empty());
    let mut sources: Vec<Source<'a>> = over.chain([file]).copied().collect();
    let own = sources.len();
    let mut documents = Vec::new();
    while let Some(source) = sources.get(documents.len()).copied() {
        let document = DeTable::parse(source.text)
            .map_err(|error| ProfileError::Syntax { file: source.file.to_owned(), what: error.to_string() })?;
        let layer = Section::new(String::new(), vec![Layer::new(source, &document)]);
        if let Some(name) = layer.text_if_there("base")? {
            let Some((file, text)) = built_in.iter().find(|(known, _)| *known == name) else {
                let names: Vec<&str> = built_in.iter().map(|(known, _)| *known).collect();
                return Err(layer.wrong(
                    "base",
                    format!("is {name}, which is no built-in profile; there are {}", names.join(", ")),
                ));
            };
            // A profile that is its own base would not terminate; a user's file may have the name of a built-in one.
            if sources[own..].iter().any(|known| known.file == *file) {
                return Err(layer.wrong("base", format!("is {name}, which is based on this profile")));
            }
            sources.push(Source { file, text });
        }
        documents.push(document);
    }
    let layers: Vec<Layer<'_>> =
        sources.iter().zip(&documents).map(|(source, document)| Layer::new(*source, document)).collect();
    // The name must not come from the base.
    let name = Section::new(String::new(), layers[..own].to_vec()).text("name")?.to_owned();
    let root = Section::new(String::new(), layers);
    let mut machine = machine(&root, name)?;
    root.end()?;
    machine.hash = hash(sources.iter().flat_map(|source| source.text.bytes()));
    Ok(machine)
}

/// Source: Fowler, Noll and Vo's hash, variant 1a, 64 bits. It identifies a text and does not protect it.
fn hash(text: impl Iterator<Item = u8>) -> u64 {
    text.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn machine(root: &Section<'_>, name: String) -> Result<Machine, ProfileError> {
    for key in ["name", "base"] {
        root.text_if_there(key)?;
    }
    let nodes = memory::nodes(root)?;
    let (link, link_latency) = match root.section_if_there("link")? {
        None => (None, Picos::ZERO),
        Some(section) => {
            let link = (Some(section.rate("gb_s")?), section.nanos("latency_ns")?);
            section.end()?;
            link
        }
    };
    if link.is_none() && nodes.iter().any(|node| node.socket != nodes[0].socket) {
        return Err(root.wrong("node", "names two sockets, and there is no [link] between them"));
    }
    let (memory, cache) = (memory::memory(root.section("memory")?)?, memory::cache(root.section("cache")?)?);
    let section = root.section("device")?;
    let devices = section.indices("nodes", nodes.len(), "memory nodes")?;
    let device = device(&section, root.section("op")?)?;
    section.end()?;
    let translation = translation::costs(root.section("translation")?)?;
    let submit = submit(root.section("submit")?)?;
    let section = root.section("library")?;
    let library = Libraries {
        raw: library(section.section("raw")?)?,
        lean: library(section.section("lean")?)?,
        dml: library(section.section("dml")?)?,
        kernel: library(section.section("kernel")?)?,
    };
    section.end()?;
    let wait = wait(root.section("wait")?)?;
    let section = root.section("software")?;
    let software = software::costs(&section)?;
    section.end()?;
    Ok(Machine {
        name,
        hash: 0,
        nodes,
        memory,
        cache,
        link,
        link_latency,
        devices,
        device,
        translation,
        submit,
        library,
        wait,
        software,
    })
}

fn device(section: &Section<'_>, ops: Section<'_>) -> Result<DeviceCosts, ProfileError> {
    Ok(DeviceCosts {
        read: section.rate("read_gb_s")?,
        write: section.rate("write_gb_s")?,
        through: section.rate("copy_gb_s")?,
        descriptor_bytes: section.count("descriptor_bytes", 0..=4096, "bytes")?,
        bubble: section.nanos("bubble_ns")?,
        list_fetch: section.nanos("list_fetch_ns")?,
        // Cannot fail: below 64.
        ready: usize::try_from(section.count("ready", 1..=64, "descriptors")?).unwrap_or(1),
        batches: section.flag_if_there("batches")?.unwrap_or(true),
        in_flight: section.count("in_flight_bytes", 64..=1 << 24, "bytes")?,
        partial_line: section.nanos("partial_line_ns")?,
        half_line: section.nanos("half_line_ns")?,
        readback: section.nanos("readback_ns")?,
        writes_in_flight: section.count("writes_in_flight_bytes", 64..=1 << 24, "bytes")?,
        path: section.nanos("path_ns")?,
        ops: op_costs(ops)?,
    })
}

fn op_costs(section: Section<'_>) -> Result<OpCosts, ProfileError> {
    let mut costs = OpCosts::all(op_cost(section.section("other")?)?);
    let mut own = Vec::new();
    for (name, op) in section.sections()? {
        if name == "other" {
            continue;
        }
        let Some(opcode) = Opcode::ALL.iter().find(|opcode| opcode.name() == name) else {
            return Err(section.wrong(name, "is not the name of an operation"));
        };
        costs = costs.with(*opcode, op_cost(op)?);
        own.push(*opcode);
    }
    for (newer, like) in SYNTHETIC.iter().filter(|(newer, _)| !own.contains(newer)) {
        let cost = *costs.of(*like);
        costs = costs.with(*newer, cost);
    }
    Ok(costs)
}

fn op_cost(section: Section<'_>) -> Result<OpCost, ProfileError> {
    let cost = OpCost {
        front: section.nanos("front_ns")?,
        front_per_doubling: section.nanos("front_per_doubling_ns")?,
        latency: section.nanos("latency_ns")?,
        per_doubling: section.nanos("per_doubling_ns")?,
        per_page_doubling: section.nanos("per_page_doubling_ns")?,
    };
    section.end()?;
    Ok(cost)
}

fn submit(section: Section<'_>) -> Result<SubmitCosts, ProfileError> {
    let costs = SubmitCosts {
        movdir: section.nanos("movdir64b_ns")?,
        enqcmd: section.nanos("enqcmd_ns")?,
        system_call: section.nanos("write_ns")?,
        transit: section.nanos("transit_ns")?,
    };
    section.end()?;
    Ok(costs)
}

fn library(section: Section<'_>) -> Result<LibraryCosts, ProfileError> {
    let costs = LibraryCosts {
        prepare: section.nanos("prepare_ns")?,
        prepare_member: section.nanos("prepare_member_ns")?,
        complete: section.nanos("complete_ns")?,
    };
    section.end()?;
    Ok(costs)
}

fn wait(section: Section<'_>) -> Result<WaitCosts, ProfileError> {
    let costs = WaitCosts {
        poll: section.nanos("poll_ns")?,
        look: section.nanos("look_ns")?,
        umwait_entry: section.nanos("umwait_entry_ns")?,
        umwait_exit: section.nanos("umwait_exit_ns")?,
        interrupt: section.nanos("interrupt_ns")?,
        wake_up: section.nanos("wake_up_ns")?,
    };
    section.end()?;
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_can_be_read() {
        for (name, text) in BUILT_IN {
            let machine = Machine::parse(name, text).unwrap();
            assert_eq!(machine.name, *name);
        }
    }

    #[test]
    fn the_template_can_be_read_with_and_without_its_commented_keys() {
        let machine = Machine::parse("template.toml", TEMPLATE).unwrap();
        assert_eq!(machine.name, "my-machine");
        let is_key = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        let lines: Vec<&str> =
            TEMPLATE.lines().map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line)).collect();
        assert!(lines.iter().zip(TEMPLATE.lines()).filter(|(lines, line)| *lines != line).count() > 10);
        Machine::parse("template.toml", &lines.join("\n")).unwrap();
    }

    /// The tables of a profile with their known keys, taken from the error about an unknown key.
    fn keys() -> Vec<(&'static str, Vec<String>)> {
        let (name, text) = BUILT_IN[0];
        let known = |table: &str| {
            // The last table of the profile is a node.
            let (text, change) = match table {
                "[node]" => (format!("{text}\nunknown = 1\n"), String::new()),
                "" => (text.to_owned(), "unknown_key = 1".to_owned()),
                table => (text.to_owned(), format!("{table}.unknown_key = 1")),
            };
            match Machine::changed(name, &text, &change) {
                Err(ProfileError::Unknown { known, .. }) => known.split(", ").map(str::to_owned).collect(),
                other => panic!("{table}: {other:?}"),
            }
        };
        let tables = [
            "",
            "device",
            "op.fill",
            "translation",
            "submit",
            "library.lean",
            "wait",
            "software",
            "software.op.fill",
            "memory",
            "cache",
            "link",
            "[node]",
        ];
        let all: Vec<(&str, Vec<String>)> = tables.into_iter().map(|table| (table, known(table))).collect();
        // List new tables here.
        let root: Vec<&str> =
            all[0].1.iter().map(String::as_str).filter(|key| !["name", "base"].contains(key)).collect();
        let listed =
            |key: &&str| tables.iter().any(|table| table.trim_matches(['[', ']']).split('.').next() == Some(*key));
        assert!(root.iter().all(listed), "{root:?}");
        all.into_iter().skip(1).collect()
    }

    #[test]
    fn the_page_lists_every_parameter_and_no_other() {
        let page = include_str!("../../docs/profiles.md");
        let mut count = 0;
        for (table, keys) in keys() {
            let heading = format!("### `[{}]`\n", table.replace(".fill", ".NAME").replace(".lean", ".NAME"));
            let rows = page.split(&heading).nth(1).unwrap_or_else(|| panic!("docs/profiles.md has no {heading}"));
            let rows = rows.split("\n##").next().unwrap().lines();
            let rows: Vec<&str> = rows.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
            let mut rows: Vec<String> = rows.into_iter().map(str::to_owned).collect();
            rows.sort();
            let of_its_own = |key: &String| !["op", "raw", "lean", "dml", "kernel"].contains(&key.as_str());
            assert_eq!(rows, keys.into_iter().filter(of_its_own).collect::<Vec<_>>(), "docs/profiles.md, {heading}");
            count += rows.len();
        }
        assert!(count > 60);
    }

    #[test]
    fn the_template_shows_every_parameter() {
        for (table, keys) in keys() {
            let table = table.replace("op.fill", "op.memory-move");
            let begin = format!("[{table}]\n");
            let within = TEMPLATE.split(&format!("\n{begin}")).nth(1).unwrap_or_else(|| panic!("no {begin}"));
            let within = within.split("\n[").next().unwrap();
            for key in keys.iter().filter(|key| *key != "op") {
                let line = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
                assert!(within.lines().any(line), "profiles/template.toml has no {key} in {begin}");
            }
        }
    }

    #[test]
    fn a_profile_overrides_its_base() {
        let text = "name = \"mine\"\nbase = \"spr-asplos\"\n[op.fill]\nfront_ns = 50\n[device]\nnodes = [0]\n";
        let (mine, base) = (Machine::parse("mine.toml", text).unwrap(), Machine::built_in("spr-asplos").unwrap());
        let fill = |machine: &Machine| *machine.device.ops.of(Opcode::Fill);
        assert_eq!(fill(&mine), OpCost { front: Picos::from_nanos(50), ..fill(&base) });
        assert_eq!((mine.name.as_str(), mine.devices.len(), &mine.nodes), ("mine", 1, &base.nodes));
        assert_ne!(mine.hash, base.hash);
    }

    #[test]
    fn errors_name_the_file_line_and_key_of_the_layer_that_is_wrong() {
        let of = |text: &str| Machine::parse("mine.toml", text).unwrap_err().to_string();
        let head = "name = \"mine\"\nbase = \"spr-asplos\"\n";
        assert!(of("base = \"spr-asplos\"\n").starts_with("mine.toml, line 1: name is missing; it must be a text"));
        assert!(of("name = \"mine\"\n").starts_with("mine.toml, line 1: node is missing"));
        let wrong = of(&format!("{head}\n[submit]\nenqcmd_ns = -1\n"));
        assert!(wrong.starts_with("mine.toml, line 5: submit.enqcmd_ns is -1"), "{wrong}");
        let unknown = of(&format!("{head}[submit]\nenqcmd_us = 1\n"));
        assert!(unknown.starts_with("mine.toml, line 4: submit.enqcmd_us is not a parameter"), "{unknown}");
        let no_base = of("name = \"mine\"\nbase = \"missing\"\n");
        assert!(no_base.starts_with("mine.toml, line 2: base is missing, which is no built-in profile"), "{no_base}");
        let node = of(&format!("{head}[[node]]\nsocket = 0\n"));
        assert!(node.starts_with("mine.toml, line 3: node[0].read_gb_s is missing"), "{node}");
    }

    #[test]
    fn a_change_is_a_layer_over_the_file() {
        let (name, text) = BUILT_IN[0];
        let machine = Machine::changed(name, text, "submit.enqcmd_ns = 300").unwrap();
        let own = Machine::parse(name, text).unwrap();
        assert_eq!((machine.submit.enqcmd, machine.submit.movdir), (Picos::from_nanos(300), own.submit.movdir));
        assert_ne!(machine.hash, own.hash);
        let wrong = Machine::changed(name, text, "wait.poll_ns = 1\nsubmit.enqcmd_ns = 'long'").unwrap_err();
        assert!(wrong.to_string().starts_with("--set, line 2: submit.enqcmd_ns is string, not a number"), "{wrong}");
    }

    #[test]
    fn profiles_that_are_based_on_each_other_are_refused() {
        let chain = [("a", "name = 'a'\nbase = 'b'\n"), ("b", "name = 'b'\n\nbase = 'a'\n")];
        let own = Source { file: "mine.toml", text: "name = 'mine'\nbase = 'a'\n" };
        let message = read(&[own], &chain).unwrap_err().to_string();
        assert_eq!(message, "b, line 3: base is a, which is based on this profile");
    }

    /// The error of parsing the first profile after a change.
    fn message_of(from: &str, to: &str) -> String {
        let (name, text) = BUILT_IN[0];
        assert!(text.contains(from), "{from} stands in {name}");
        Machine::parse("my.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_line_of_a_missing_impossible_or_unknown_key() {
        let line_of = |what: &str| BUILT_IN[0].1.lines().position(|line| line.starts_with(what)).unwrap() + 1;
        let submit = line_of("[submit]");
        assert_eq!(
            message_of("\nenqcmd_ns", "\n# enqcmd_ns"),
            format!("my.toml, line {submit}: submit.enqcmd_ns is missing; it must be a number from 0 to 100000000 ns")
        );
        let enqcmd = line_of("enqcmd_ns");
        let impossible = message_of("\nenqcmd_ns = 1", "\nenqcmd_ns = -1");
        assert!(impossible.starts_with(&format!("my.toml, line {enqcmd}: submit.enqcmd_ns is -1")), "{impossible}");
        let unknown = message_of("\nenqcmd_ns", "\nenqcmd_us = 1\nenqcmd_ns");
        assert!(
            unknown.starts_with(&format!("my.toml, line {enqcmd}: submit.enqcmd_us is not a parameter; known there: ")),
            "{unknown}"
        );
        assert!(message_of("[op.fill]", "[op.fil]").contains("op.fil is not the name of an operation"));
        assert!(message_of("nodes = [0", "nodes = [7").contains("each below"));
        let none = Machine::parse("my.toml", "name = 'mine'\nbase = 'spr-asplos'\nnode = []\n").unwrap_err();
        assert_eq!(none.to_string(), "my.toml, line 3: node is empty");
        assert!(message_of("[submit]", "[submit").contains("is not a profile"));
        for nothing in ["", "\n", "# Nothing.\n"] {
            let error = Machine::parse("my.toml", nothing).unwrap_err().to_string();
            assert_eq!(error, "my.toml, line 1: name is missing; it must be a text");
        }
    }
}
