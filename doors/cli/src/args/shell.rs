//! Options of `telpher completions` and `telpher man`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A shell that completes command lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ShellName {
    /// Bash 4.4 or later completes best.
    Bash,
    /// Z shell.
    Zsh,
    /// Fish.
    Fish,
}

/// Print the script with which a shell completes commands, flags and values.
///
/// Bash reads it from the folder bash-completion/completions, zsh as _telpher from a folder of fpath, fish from
/// ~/.config/fish/completions.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher completions bash > telpher
  telpher completions zsh > _telpher
  telpher completions fish > telpher.fish
For one session: source <(telpher completions bash)")]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: ShellName,
}

/// Print a manual page, or write those of all commands.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher man bench ops | man -l -
  telpher man --folder man1")]
pub(crate) struct Man {
    /// The command whose page is printed [default: telpher itself].
    #[arg(value_name = "COMMAND", conflicts_with = "folder")]
    pub(crate) command: Vec<String>,
    /// Write the pages of all commands to this folder, which is created if it does not exist.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) folder: Option<PathBuf>,
}
