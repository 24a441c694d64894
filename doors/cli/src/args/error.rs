//! Usage errors as one sentence that says what is accepted.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

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
            let (name, command) = innermost(args);
            match text(ContextKind::SuggestedArg).split_whitespace().next() {
                Some(meant) => {
                    format!("unknown option '{}'; did you mean '{meant}'? `{name} --help` lists all options", option())
                }
                None => format!("unknown option '{}'; `{name}` takes {}", option(), options(&command)),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let (name, command) = innermost(args);
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let word = text(ContextKind::InvalidSubcommand);
            match text(ContextKind::SuggestedSubcommand).split(", ").next().filter(|meant| !meant.is_empty()) {
                Some(meant) => {
                    format!("unknown command '{word}'; did you mean '{meant}'? `{name}` has {}", join(&names))
                }
                None => format!("unknown command '{word}'; `{name}` has {}", join(&names)),
            }
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
    let mut command = super::tree();
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
    let visible = command.get_arguments().filter(|option| !option.is_hide_set());
    let all: Vec<String> = visible.filter_map(|option| option.get_long()).map(|long| format!("--{long}")).collect();
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

    fn message_of(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        sentence(&super::super::Cli::parse_from_words(&args).unwrap_err(), &args).unwrap()
    }

    #[test]
    fn an_unknown_option_suggests_the_closest_one() {
        let text = message_of(&["telpher", "bench", "--sice", "4k"]);
        assert_eq!(text, "unknown option '--sice'; did you mean '--size'? `telpher bench --help` lists all options");
    }

    #[test]
    fn an_unknown_option_unlike_all_others_lists_the_known_options() {
        let text = message_of(&["telpher", "bench", "--zzz", "4k"]);
        assert!(text.starts_with("unknown option '--zzz'; `telpher bench` takes --op, --size,"), "{text}");
        assert!(text.ends_with(" and --help"), "{text}");
        assert_eq!((text.matches("--html").count(), text.lines().count()), (1, 1), "{text}");
    }

    #[test]
    fn a_bad_size_describes_valid_sizes() {
        let text = message_of(&["telpher", "bench", "--size", "4x"]);
        assert!(text.starts_with("--size: '4x' is not a size; a size is"), "{text}");
    }

    #[test]
    fn a_bad_choice_names_the_choices() {
        assert_eq!(message_of(&["telpher", "bench", "--wq-mode", "x"]), "--wq-mode takes dedicated or shared, not 'x'");
        assert_eq!(message_of(&["telpher", "bench", "--pages", "1k"]), "--pages takes 4k or 2m or 1g, not '1k'");
    }

    #[test]
    fn an_unknown_command_names_the_commands() {
        let text = message_of(&["telpher", "bnch"]);
        assert!(
            text.starts_with("unknown command 'bnch'; did you mean 'bench'? `telpher` has advise, bench"),
            "{text}"
        );
        let text = message_of(&["telpher", "zzz"]);
        assert!(text.starts_with("unknown command 'zzz'; `telpher` has advise, bench"), "{text}");
    }

    #[test]
    fn conflicting_options_are_named() {
        let text = message_of(&["telpher", "bench", "--html", "x.html", "--no-html"]);
        assert_eq!(text, "--html cannot be used together with --no-html");
    }

    #[test]
    fn help_is_not_an_error() {
        let args = ["telpher", "--help"].map(String::from);
        assert!(sentence(&super::super::Cli::parse_from_words(&args).unwrap_err(), &args).is_none());
    }
}
