//! `telpher completions` and `telpher man`: what a package installs beside the binary, made from the command line's
//! own description.

use crate::args::{Completions, Man, ShellName, tree};
use clap::builder::Resettable;
use clap::{Command, Id};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};
use telpher_report::deliver::{self, DeliverError};

/// Why there is no script or manual page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ShellError {
    /// The command does not exist.
    #[error("there is no command '{0}'; `telpher --help` lists the commands")]
    NoCommand(String),
    /// A page cannot be written.
    #[error("cannot write the manual pages to {}; name another folder with --folder", path.display())]
    Write {
        /// The file or the folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Prints the completion script of a shell.
pub(crate) fn completions(args: &Completions) -> Result<(), ShellError> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&tree()), "telpher", &mut script);
    Ok(deliver::print(String::from_utf8(script).expect("scripts are text"))?)
}

/// Returns a command line without its hidden options, which the script for bash would offer.
fn visible(command: &Command) -> Command {
    let options = command.get_arguments().filter(|option| !option.is_hide_set()).cloned();
    // These rules may name options that are left out, and a script knows no rules.
    let none = || Resettable::<Id>::Reset;
    let options =
        options.map(|option| option.conflicts_with(none()).requires(none()).overrides_with(none()).required(false));
    let commands = command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible);
    // A name must live as long as the process, which ends after the script.
    let name: &'static str = command.get_name().to_owned().leak();
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .version(env!("CARGO_PKG_VERSION"))
        .args(options)
        .subcommands(commands)
}

/// Prints one manual page, or writes all of them.
pub(crate) fn man(args: &Man) -> Result<(), ShellError> {
    let mut command = tree();
    command.build();
    let Some(folder) = &args.folder else {
        let mut found = &command;
        for name in &args.command {
            found = found.find_subcommand(name).ok_or_else(|| ShellError::NoCommand(args.command.join(" ")))?;
        }
        return Ok(deliver::print(page(found))?);
    };
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| ShellError::Write { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    write_all(&command, folder, &failed)
}

fn write_all<F: FnOnce(io::Error) -> ShellError>(
    command: &Command,
    folder: &Path,
    failed: &impl Fn(&Path) -> F,
) -> Result<(), ShellError> {
    let path = folder.join(format!("{}.1", name(command)));
    telpher_os::write_file(&path, page(command).as_bytes()).map_err(failed(&path))?;
    command.get_subcommands().try_for_each(|inner| write_all(inner, folder, failed))
}

/// Returns the name of a command's page: `telpher-bench-ops`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Returns a manual page: clap's sections, and the examples as they are in the help.
fn page(command: &Command) -> String {
    let man = clap_mangen::Man::new(command.clone())
        .title(name(command).to_uppercase())
        .source(format!("telpher {}", env!("CARGO_PKG_VERSION")))
        .manual("telpher");
    let text = render(&man, command.has_subcommands()).expect("a vector can always be written");
    let mut text = String::from_utf8(text).expect("pages are text");
    if let Some(help) = command.get_after_help() {
        text.push_str(&examples(&help.to_string()));
    }
    text
}

fn render(man: &clap_mangen::Man, has_subcommands: bool) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    Ok(text)
}

/// Returns the section with the examples, line by line.
fn examples(help: &str) -> String {
    let lines = help.lines().skip_while(|line| *line == "Examples:");
    // A point or a quote at the beginning of a line would be a request to the formatter.
    let escaped = lines.map(|line| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
    format!(".SH EXAMPLES\n.nf\n{}.fi\n", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_are_no_requests() {
        let text = examples("Examples:\n  telpher bench --full\n.so /etc/passwd\na\\b");
        assert_eq!(text, ".SH EXAMPLES\n.nf\n\\&  telpher bench \\-\\-full\n\\&.so /etc/passwd\n\\&a\\eb\n.fi\n");
    }

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let mut command = tree();
        command.build();
        let bench = command.find_subcommand("bench").and_then(|bench| bench.find_subcommand("ops")).unwrap();
        let page = page(bench);
        for words in ["TELPHER-BENCH-OPS", ".SH NAME", "telpher\\-bench\\-ops", ".SH EXAMPLES", "\\-\\-seconds"] {
            assert!(page.contains(words), "{words} is missing in {page}");
        }
    }
}
