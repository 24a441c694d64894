//! Commands of system(3) and popen(3). The C library starts their shell by an internal call, which cannot be replaced,
//! with the environment of the process.
//!
//! If a value of ours is missing in that environment, the shell gets another command, which sets the value and becomes
//! a shell that executes the program's command. Process id, exit code and the command's `$0` stay the same. If nothing
//! is missing, the command is passed on unchanged.
#![allow(unsafe_code, reason = "writes a command to pages of its own")]

use super::environment::{Entries, PRELOAD, Restored, value};
use super::scratch::in_pages;
use super::state::kept;
use super::target::{Program, environment, restored};
use std::ffi::{CStr, c_char};

/// The shell of system(3) and popen(3). Source: paths.h, _PATH_BSHELL.
const SHELL: &CStr = c"/bin/sh";

/// Passes a text to `out`, in the shell's quotes.
fn quote(text: &[u8], out: &mut dyn FnMut(&[u8])) {
    out(b"'");
    for (count, part) in text.split(|byte| *byte == b'\'').enumerate() {
        if count > 0 {
            out(b"'\\''");
        }
        out(part);
    }
    out(b"'");
}

/// Passes the command to `out`, in parts.
fn compose(restored: &Restored<'_>, list: &[u8], command: &[u8], out: &mut dyn FnMut(&[u8])) {
    out(b"export LD_PRELOAD='");
    // A path with a quote in it is not restored: see `can_be_quoted`.
    restored.wanted.compose(list, out);
    out(b"'");
    for variable in restored.variables {
        let text = variable.text.to_bytes();
        out(b" ");
        out(&text[..variable.name]);
        out(b"=");
        quote(&text[variable.name + 1..], out);
    }
    out(b"; exec /bin/sh -c -- ");
    quote(command, out);
    // The name by which the shell calls itself.
    out(b" sh");
}

/// True if no path in the list contains a quote.
fn can_be_quoted(restored: &Restored<'_>, list: &[u8]) -> bool {
    !list.contains(&b'\'') && !restored.wanted.image.contains(&b'\'')
}

/// Calls `act` with the command, or with a command that first restores what is missing.
///
/// # Safety
/// `command` is a string or null.
pub(super) unsafe fn with_command<R>(command: *const c_char, mut act: impl FnMut(*const c_char) -> R) -> R {
    let Some(kept) = kept() else { return act(command) };
    if command.is_null() {
        return act(command);
    }
    let entries = environment();
    // SAFETY: this process' environment; a string.
    let done = unsafe {
        let (entries, program) = (Entries::new(entries), Program::At(libc::AT_FDCWD, SHELL.as_ptr()));
        restored(kept, environment(), program, |restored| {
            restored.measure(entries)?;
            // The dynamic linker uses the last of several.
            let mut entries = entries;
            let list = entries.by_ref().filter_map(|entry| value(entry, PRELOAD)).last().unwrap_or_default();
            if !can_be_quoted(&restored, list) {
                return None;
            }
            let command = CStr::from_ptr(command).to_bytes();
            let mut bytes = 1;
            compose(&restored, list, command, &mut |piece| bytes += piece.len());
            in_pages(bytes, &mut |scratch| {
                let mut at = scratch;
                compose(&restored, list, command, &mut |piece| {
                    // SAFETY: as many bytes as were counted for the same parts; the pages are new.
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), at, piece.len());
                    at = at.wrapping_add(piece.len());
                });
                act(scratch.cast::<c_char>().cast_const())
            })
            .ok()
        })
    };
    match done.flatten() {
        Some(answer) => answer,
        None => act(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::environment::Variable;
    use crate::exec::list::PreloadRequirements;
    use std::process::Command;

    fn composed(list: &str, command: &str) -> String {
        let variable = Variable { text: c"TELPHER_RUN=it's this", name: 11 };
        let wanted = PreloadRequirements { image: b"/no/ours.so", first: None };
        let restored = Restored { wanted, variables: &[variable] };
        let mut out = Vec::new();
        compose(&restored, list.as_bytes(), command.as_bytes(), &mut |piece| out.extend_from_slice(piece));
        String::from_utf8(out).unwrap()
    }

    fn shell(command: &str) -> std::process::Output {
        Command::new("/bin/sh").args(["-c", command]).env_clear().env("PATH", "/bin:/usr/bin").output().unwrap()
    }

    #[test]
    fn a_command_runs_in_a_shell_with_the_variables() {
        let composed = composed("a.so", r#"printf '%s|' "$0" "$#" "$LD_PRELOAD" "$TELPHER_RUN" 'a'"'"'b'; exit 7"#);
        let done = shell(&composed);
        let stdout = String::from_utf8(done.stdout).unwrap();
        assert_eq!((stdout.as_str(), done.status.code()), ("sh|0|/no/ours.so:a.so|it's this|a'b|", Some(7)));
    }

    #[test]
    fn a_command_may_begin_with_a_dash() {
        let done = shell(&composed("", "-no-such-program"));
        assert_eq!(done.status.code(), Some(127));
    }
}
