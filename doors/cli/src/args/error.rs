//! Usage errors as one sentence that says what is accepted.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error};

/// Returns one sentence for a usage error; `None` if the "error" is a help or version text, to be printed unchanged.
pub(crate) fn sentence(error: &Error, args: &[String]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(s)) => s.clone(),
        Some(ContextValue::Strings(s)) => s.join(", "),
        Some(ContextValue::StyledStr(s)) => s.to_string(),
        _ => String::new(),
    };
    // clap names an option with its value, `--size <SIZES>`; users type only the first word.
    let option = || text(ContextKind::InvalidArg).split_whitespace().next().unwrap_or("the argument").to_owned();
    Some(match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::DisplayVersion => {
            return None;
        }
        ErrorKind::UnknownArgument => {
            let command = innermost(args);
            format!("unknown option '{}'; `{}` takes {}", option(), command.0, options(&command.1))
        }
        ErrorKind::InvalidSubcommand => {
            let command = innermost(args);
            let names: Vec<&str> = command.1.get_subcommands().map(Command::get_name).collect();
            format!("unknown command '{}'; `{}` has {}", text(ContextKind::InvalidSubcommand), command.0, join(&names))
        }
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            format!("{} needs a value", option())
        }
        ErrorKind::InvalidValue => {
            let valid = text(ContextKind::ValidValue);
            format!("{} takes {}, not '{}'", option(), valid.replace(", ", " or "), text(ContextKind::InvalidValue))
        }
        ErrorKind::ValueValidation => match std::error::Error::source(error) {
            Some(source) => format!("{}: {source}", option()),
            None => format!("{} does not take '{}'", option(), text(ContextKind::InvalidValue)),
        },
        ErrorKind::ArgumentConflict => {
            format!("{} cannot be used together with {}", option(), text(ContextKind::PriorArg))
        }
        ErrorKind::MissingRequiredArgument => {
            let command = innermost(args).0;
            let missing = text(ContextKind::InvalidArg).replace(['<', '>', '.'], "");
            format!("`{command}` needs {missing}; see `{command} --help`")
        }
        // For other kinds, clap's own first line.
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

/// Returns the full name of the innermost subcommand in `args`, and the subcommand.
fn innermost(args: &[String]) -> (String, Command) {
    let mut command = super::Cli::command();
    let mut name = String::from("telpher");
    for word in args.iter().skip(1) {
        if let Some(next) = command.find_subcommand(word) {
            name = format!("{name} {word}");
            command = next.clone();
        }
    }
    (name, command)
}

/// Returns all options of a command, such as `--op, --size … and --seconds`.
fn options(command: &Command) -> String {
    let longs = command.get_opts().filter_map(|option| option.get_long());
    let mut all: Vec<String> = longs.map(|long| format!("--{long}")).collect();
    all.push("--help".into());
    join(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn join(words: &[&str]) -> String {
    match words {
        [] => "none".into(),
        [one] => (*one).into(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn said(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        sentence(&super::super::Cli::try_parse_from(&args).unwrap_err(), &args).unwrap()
    }

    #[test]
    fn an_unknown_option_lists_the_known_options() {
        let text = said(&["telpher", "bench", "--sice", "4k"]);
        assert!(text.starts_with("unknown option '--sice'; `telpher bench` takes --op, --size,"), "{text}");
        assert!(text.ends_with("--seconds, --no-html and --help") || text.ends_with("--seconds and --help"), "{text}");
        assert_eq!((text.matches("--no-html").count(), text.lines().count()), (1, 1), "{text}");
    }

    #[test]
    fn a_bad_size_describes_valid_sizes() {
        let text = said(&["telpher", "bench", "--size", "4x"]);
        assert!(text.starts_with("--size: '4x' is not a size; a size is"), "{text}");
    }

    #[test]
    fn a_bad_choice_names_the_choices() {
        assert_eq!(said(&["telpher", "bench", "--queue", "x"]), "--queue takes dedicated or shared, not 'x'");
        assert_eq!(said(&["telpher", "bench", "--pages", "1g"]), "--pages takes 4k or 2m, not '1g'");
    }

    #[test]
    fn an_unknown_command_names_the_commands() {
        let text = said(&["telpher", "bnch"]);
        assert!(text.starts_with("unknown command 'bnch'; `telpher` has advise, bench"), "{text}");
    }

    #[test]
    fn conflicting_options_are_named() {
        let text = said(&["telpher", "bench", "--html", "x.html", "--no-html"]);
        assert_eq!(text, "--html cannot be used together with --no-html");
    }

    #[test]
    fn help_is_not_an_error() {
        let args = ["telpher", "--help"].map(String::from);
        assert!(sentence(&super::super::Cli::try_parse_from(&args).unwrap_err(), &args).is_none());
    }
}
