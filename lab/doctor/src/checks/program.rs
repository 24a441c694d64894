//! Checks of the program that the user names: the Data Mover Library that it has.

use crate::causes;
use crate::dml_library::Maker;
use crate::examined_machine::ExaminedMachine;
use crate::finding::{Evidence, Finding};

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let Some(program) = &p.program else { return Vec::new() };
    if !program.is_readable {
        return vec![
            Finding::of(&causes::PROGRAM_UNREADABLE, "the program")
                .seen(p.seen(&program.maps))
                .remedy("run the doctor as the program's user or as root, in the program's container, while it runs"),
        ];
    }
    let seen = program.libraries.iter().map(|(path, library)| Evidence { source: path.clone(), says: library.line() });
    let seen: Vec<Evidence> = seen.collect();
    if program.libraries.len() > 1 {
        return vec![
            Finding::of(&causes::DML_TWICE, "the program")
                .all_seen(seen)
                .remedy("link the program and its libraries with the same DML: see docs/dml.md"),
        ];
    }
    if program.libraries.iter().any(|(_, library)| library.maker == Maker::Intel) {
        return vec![
            Finding::of(&causes::DML_OF_INTEL, "the program")
                .all_seen(seen)
                .because("docs/dml.md lists what telpher's library does differently.")
                .remedy("doors/dml/install.sh DIR    # installs telpher's library")
                .remedy("link the program again with -L DIR/lib -Wl,-rpath,DIR/lib -ldml"),
        ];
    }
    Vec::new()
}

/// Returns what the program has, as one line.
pub(super) fn looked_at(p: &ExaminedMachine<'_>) -> String {
    let Some(program) = &p.program else { return "no program was named".into() };
    if !program.is_readable {
        return format!("{} cannot be read", program.maps);
    }
    let libraries = program.libraries.iter().map(|(path, library)| format!("{} in {path}", library.line()));
    let mut parts: Vec<String> = libraries.collect();
    if parts.is_empty() {
        parts.push("no Data Mover Library is loaded".into());
    }
    if !program.unread.is_empty() {
        parts.push(format!("not readable: {}", program.unread.join(", ")));
    }
    parts.join("; ")
}
