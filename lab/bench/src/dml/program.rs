//! The measured program: C of our own, compiled when the benchmark runs, with the library that is there.

use crate::BenchError;
use crate::measured_program::MeasuredProgram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SOURCE: &str = include_str!("program.c");

/// What to do where libdml is not found.
const HINT: &str = "install it with `doors/dml/install.sh DIR`, and set PKG_CONFIG_PATH=DIR/lib/pkgconfig";

/// A library with DML's interface.
pub(super) enum Library<'a> {
    /// libdml, where pkg-config finds it.
    Installed,
    /// Intel's library, in this prefix.
    Original(&'a Path),
}

impl Library<'_> {
    /// Returns the words for the compiler.
    fn words(&self) -> Result<Vec<String>, BenchError> {
        match self {
            Library::Installed => {
                let mut words = pkg_config(&["--cflags", "--libs"])?;
                // The program runs from a folder of the benchmark.
                words.extend(pkg_config(&["--variable=libdir"])?.iter().map(|folder| format!("-Wl,-rpath,{folder}")));
                Ok(words)
            }
            Library::Original(prefix) => {
                // Some systems have folders of their own for libraries of 64 bits.
                let names = ["lib", "lib64"].map(|folder| prefix.join(folder).join("libdml.a"));
                let archive = names.iter().find(|name| name.exists()).unwrap_or(&names[0]);
                let words = [format!("-I{}", prefix.join("include").display()), archive.display().to_string()];
                let libraries = ["-lstdc++", "-ldl", "-lpthread", "-lm"].map(str::to_owned);
                Ok([&words[..], &libraries].concat())
            }
        }
    }
}

fn pkg_config(words: &[&str]) -> Result<Vec<String>, BenchError> {
    let output = Command::new("pkg-config").args(words).arg("dml").stdin(Stdio::null()).output();
    let output = output.map_err(|error| BenchError::NotHere(format!("pkg-config does not start: {error}; {HINT}")))?;
    if !output.status.success() {
        return Err(BenchError::NotHere(format!("libdml is not found: {}; {HINT}", first_line(&output))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

fn first_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("no message").to_owned()
}

/// The compiled program.
#[derive(Debug)]
pub(super) struct Program(PathBuf);

/// Compiles the program with a library.
pub(super) fn compile(folder: &Path, library: &Library<'_>) -> Result<Program, BenchError> {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, SOURCE)
        .map_err(|error| BenchError::Program { what: format!("writing {}", source.display()), source: error })?;
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O2", "-o"]).arg(&program).arg(&source).args(library.words()?).stdin(Stdio::null());
    let output = command.output().map_err(|error| BenchError::Program { what: "starting cc".into(), source: error })?;
    if !output.status.success() {
        return Err(BenchError::NotHere(format!("the program does not compile: {}", first_line(&output))));
    }
    Ok(Program(program))
}

impl Program {
    /// Starts it; jobs on the hardware path use the device.
    pub(super) fn start(&self, what: &str, device: Option<&str>) -> Result<MeasuredProgram, BenchError> {
        let mut command = Command::new(&self.0);
        command.env_remove("TELPHER_DML_STRICT").env("TELPHER_DML_DEVICE", device.unwrap_or("cpu"));
        MeasuredProgram::spawn(what, command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let folder = Folder::new().unwrap();
        let nothing = folder.file("no-such-prefix");
        match compile(folder.path(), &Library::Original(&nothing)) {
            Err(BenchError::NotHere(why)) => assert!(why.starts_with("the program does not compile: "), "{why}"),
            // A machine without a compiler.
            Err(BenchError::Program { what, .. }) => assert_eq!(what, "starting cc"),
            other => panic!("{other:?}"),
        }
    }
}
