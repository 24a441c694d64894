//! Configurations and their errors.

use crate::{Served, one, parse};
use std::path::Path;
use telpher_nvmf_run::config::{Config, DigestsConfig, LimitsConfig, Listener, NamespaceConfig, PORT, SubsystemConfig};
use telpher_nvmf_run::values::{Backend, Pages};
use telpher_nvmf_run::{ConfigError, NvmfRunError};

/// The documentation for users.
fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nvmf.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn an_error_names_the_position_and_the_key() {
    let cases = [
        ("", "t:1:0: EOF while parsing a value"),
        ("[]", "t:1:0: invalid type: sequence, expected an object with the keys listeners, subsystems, limits"),
        ("{\"loop\": 2}", "t:1:7: unknown key 'loop'; the nearest known key is 'loops'"),
        ("{\n \"digest\": {}}", "t:2:9: unknown key 'digest'; the nearest known key is 'digests'"),
        ("{\"colour\": 1}", "t:1:9: unknown key 'colour'; known keys are listeners, subsystems, limits"),
        ("{\"loops\": 2, \"loops\": 3}", "t:1:20: the key 'loops' is given twice"),
        ("{\"loops\": \"two\"}", "t:1:15: loops: invalid type: string \"two\", expected u16"),
        ("{\"loops\": 0}", "t:1:12: loops is 0; it must be 1 to 256"),
        ("{\"listeners\": []}", "t:1:17: listeners is empty; the server needs an address"),
        ("{\"listeners\": [{\"port\": 70000}]}", "t:1:29: listeners: port: invalid value: integer `70000`"),
        ("{\"listeners\": [{\"adress\": \"::1\"}]}", "'adress'; the nearest known key is 'address'"),
        ("{\"limits\": {\"queue_depth\": 1}}", "limits: queue_depth is 1; it must be at least 2"),
        ("{\"limits\": {\"transfer_bytes\": 5000}}", "limits: a transfer of 5000 bytes is not 4096 times"),
        ("{\"subsystems\": [{}]}", "subsystems: a subsystem needs the key 'nqn'"),
        ("{\"subsystems\": [{\"nqn\": \"disk\"}]}", "subsystems: \"disk\" is not an NQN"),
        ("{\"digests\": {\"device\": \"modle:spr\"}}", "digests: device: "),
        (&one("{}", ""), "subsystems: namespaces: a namespace needs the key 'backend'"),
        (&one("{\"backend\": \"disk:1g\"}", ""), "namespaces: backend: 'disk:1g' is not a backend; use memory:SIZE"),
        (&one("{\"backend\": \"null:1m\", \"block_bytes\": 520}", ""), "block_bytes is 520; it must be 512 or 4096"),
        (&one("{\"backend\": \"null:512\"}", ""), "a backend of 512 bytes is less than one block"),
        (&one("{\"backend\": \"null:1m\", \"uuid\": \"1\"}", ""), "namespaces: uuid: '1' is not an identifier"),
        (
            &one("{\"backend\": \"null:1m\", \"nsid\": 3}, {\"backend\": \"null:1m\", \"nsid\": 3}", ""),
            "two namespaces of nqn.2026-01.org.example:disk have the nsid 3",
        ),
        ("{\"subsystems\": [{\"nqn\": \"nqn.2026-01.a\", \"hosts\": [\"me\"]}]}", "\"me\" is not the NQN of a host"),
        (
            "{\"subsystems\": [{\"nqn\": \"nqn.2026-01.a\"}, {\"nqn\": \"nqn.2026-01.a\"}]}",
            "two subsystems have the NQN nqn.2026-01.a",
        ),
    ];
    for (text, expected) in cases {
        let error = Config::parse(text, Path::new("t")).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains(" at line "), "{error}");
    }
}

#[test]
fn a_file_that_does_not_exist_or_is_too_long_is_an_error() {
    assert!(matches!(Config::read(Path::new("/nonexistent")), Err(ConfigError::Read { .. })));
    assert!(matches!(Config::read(Path::new("/dev/zero")), Err(ConfigError::Long { .. })));
}

/// SPDK fd7af4ca20: a value of the configuration overflowed the stack. SPDK b6d806cb57: sizes were not checked.
#[test]
fn spdk_fd7af4ca20_b6d806cb57_hostile_configuration_files() {
    let parse = |text: &str| Config::parse(text, Path::new("t"));
    let page = page();
    let example = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example").trim();
    assert!(parse(example).is_ok());
    for end in 0..example.len() {
        assert!(parse(&example[..end]).is_err(), "{end} bytes");
        // Without one byte, it may still be valid.
        let _ = parse(&(example[..end].to_owned() + &example[end + 1..]));
    }
    let deep = |open: &str| open.repeat(100_000);
    for text in [deep("["), deep("{\"limits\":"), deep("{\"subsystems\":[")] {
        assert!(parse(&text).is_err());
    }
    // Every value of the example, in place of which another one stands.
    let values = example.match_indices(": ").map(|(at, _)| at + 2);
    let many = format!("\"{}\"", "x".repeat(1 << 20));
    for start in values.filter(|&start| !example[start..].starts_with(['[', '{'])) {
        let end = start + example[start..].find([',', '\n', '}']).expect("an object ends");
        let with = |other: &str| format!("{}{other}{}", &example[..start], &example[end..]);
        // Some keys may be null or empty.
        let _ = (parse(&with("null")), parse(&with("\"\"")));
        for other in ["-1", "18446744073709551616", "1e400", "[]", "{}", "\"18446744073709551615t\"", &many] {
            let is_refused = parse(&with(other)).is_err();
            assert!(is_refused || !other.starts_with(['-', '1']), "{other} in place of {}", &example[start..end]);
        }
    }
}

#[test]
fn keys_that_are_missing_have_their_defaults() {
    let config = parse("{}");
    assert_eq!(config, Config::default());
    assert_eq!(config.addresses(), [format!("127.0.0.1:{PORT}").parse().unwrap()]);
    let config = parse(&one("{\"backend\": \"memory:1m\"}, {\"backend\": \"null:2m\", \"nsid\": 1}", ""));
    let backend = config.subsystems[0].namespaces[0].backend.clone();
    assert_eq!(backend, Some(Backend::Memory { bytes: 1 << 20, pages: Pages::Small }));
}

#[test]
fn a_configuration_that_was_written_is_read_as_it_was() {
    let namespaces = "{\"backend\": \"file:/tmp/a,size=1m\", \"uuid\": \"00112233445566778899aabbccddeeff\"}";
    let config = parse(&one(namespaces, ", \"digests\": {\"device\": \"model:spr\", \"threshold\": \"3k\"}"));
    assert_eq!(parse(&config.text()), config);
}

/// The page has an example with all keys, and a row for each.
#[test]
fn the_documentation_has_every_key_and_an_example_that_is_valid() {
    let page = page();
    let example = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let config = Config::parse(example, Path::new("docs/nvmf.md")).unwrap();
    assert_ne!(config, Config::default());
    let all = [
        Config::KEYS,
        Listener::KEYS,
        SubsystemConfig::KEYS,
        NamespaceConfig::KEYS,
        DigestsConfig::KEYS,
        LimitsConfig::KEYS,
    ];
    for key in all.into_iter().flatten() {
        assert!(page.contains(&format!("| `{key}` |")), "docs/nvmf.md has no row for '{key}'");
        assert!(example.contains(&format!("\"{key}\"")), "the example in docs/nvmf.md has no '{key}'");
    }
}

#[test]
fn a_port_that_is_in_use_is_named() {
    let first = Served::new("{}");
    let Err(error) = Served::at(first.address, "{}", std::sync::Arc::clone(&first.folder)) else {
        panic!("two servers at {}", first.address)
    };
    assert!(error.to_string().starts_with(&format!("cannot listen at {}; another program", first.address)), "{error}");
}

#[test]
fn a_device_that_was_named_must_exist() {
    let config = one("", ", \"digests\": {\"device\": \"hw:wq77.7\"}");
    let opened = Served::at("127.0.0.1:0".parse().unwrap(), &config, Served::new("{}").folder.clone());
    assert!(matches!(opened.err(), Some(NvmfRunError::Device(_))));
}
