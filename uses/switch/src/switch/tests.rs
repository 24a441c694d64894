//! A switch without guests: configurations that it refuses, and how it stops.

use super::*;
use std::path::PathBuf;
use telpher_vhost::{PortOptions, Role};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("telpher-switch-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn socket(path: PathBuf) -> PortConfig {
    PortConfig { kind: PortKind::Socket { path, role: Role::Server, options: PortOptions::default() }, capture: None }
}

fn config(ports: Vec<PortConfig>) -> SwitchConfig {
    SwitchConfig { ports, buffers: 4096, ..SwitchConfig::default() }
}

#[test]
fn a_wrong_configuration_is_refused() {
    let folder = folder("wrong");
    let ports = || vec![socket(folder.join("a.sock"))];
    let refused = |config: SwitchConfig| Switch::new(config).unwrap_err();
    assert!(matches!(refused(config(Vec::new())), SwitchError::NoPorts));
    let error = refused(config(vec![socket(folder.join("none/a.sock"))]));
    assert!(matches!(&error, SwitchError::Socket { path, .. } if path.ends_with("none/a.sock")), "{error}");
    let error = refused(SwitchConfig { threads: 2, ..config(ports()) });
    assert!(matches!(error, SwitchError::Threads { threads: 2, routes: 1 }), "{error}");
    let settings = Settings { mode: Mode::TxOnly, len: 2049, ..Settings::default() };
    let error = refused(SwitchConfig { settings, ..config(ports()) });
    assert!(matches!(error, SwitchError::Size { size: 2049, longest: 2048 }), "{error}");
    let tap = PortConfig { kind: PortKind::Tap { name: "a/b".into() }, capture: None };
    let error = refused(config(vec![tap]));
    assert!(matches!(&error, SwitchError::TapName(name) if name == "a/b"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_switch_without_a_guest_starts_and_stops_more_than_once() {
    let folder = folder("stops");
    let mut port = socket(folder.join("a.sock"));
    port.capture = Some(folder.join("a.pcap"));
    let settings = Settings { mode: Mode::TxOnly, ..Settings::default() };
    let mut switch = Switch::new(SwitchConfig { settings, ..config(vec![port]) }).unwrap();
    assert!(switch.ports()[0].capture().is_none() && switch.stats(1).is_none());
    switch.start().unwrap();
    switch.start().unwrap();
    // Without a receiver, the generated packets wait. The counts appear while the thread runs.
    while switch.stats(0).unwrap().counts.generated == 0 {
        std::thread::yield_now();
    }
    switch.stop().unwrap();
    let stats = switch.stats(0).unwrap();
    let PortStats { counts, captured, .. } = stats;
    assert_eq!((counts.generated, counts.held, counts.sent, captured), (32, 32, 0, 0));
    assert!(stats.in_flight() == 0 && !stats.connected);
    switch.stop().unwrap();
    assert_eq!(switch.stats(0).unwrap(), stats);
    // A capture without packets is a file with a header.
    assert_eq!(std::fs::read(folder.join("a.pcap")).unwrap().len(), 24);
    // The socket's file disappears with the switch.
    drop(switch);
    assert!(!folder.join("a.sock").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_capture_that_cannot_be_written_fails_the_start() {
    let folder = folder("capture");
    let mut port = socket(folder.join("a.sock"));
    port.capture = Some(folder.join("none/a.pcap"));
    let error = Switch::new(config(vec![port])).unwrap().start().unwrap_err();
    assert!(matches!(&error, SwitchError::Capture { path, .. } if path.ends_with("none/a.pcap")), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}
