//! Hostile submitters in the same run as a neighbour whose copies must stay correct. Each test runs for
//! `TELPHER_SOAK_SECONDS`, by default one second, always with the same seed.

use crate::harness::{Run, View, client, in_both_views};
use crate::skip::skip;

/// Numbers of two users without any files; they need no names.
const USERS: [&str; 2] = ["64001", "64002"];

fn seconds() -> u64 {
    std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"))
}

/// Attacks the queues of a run with these options for the test's time.
fn attacked(view: View, seed: &str, users: &[&str], options: &[&str]) {
    let Some(program) = client("hostile_batches") else { return };
    let run = options.iter().fold(Run::on_two_queues(view), |run, option| run.with(option)).within(seconds() + 240);
    let mut words = vec![program.into_os_string(), seed.into(), seconds().to_string().into()];
    words.extend(users.iter().map(Into::into));
    let done = run.program(&words);
    done.expect_success();
    eprintln!("{}", done.stdout);
}

in_both_views! {
    fn hostile_batches_harm_no_neighbour(view: View) {
        attacked(view, "1", &[], &[]);
    }

    fn hostile_batches_harm_no_neighbour_of_engine_threads(view: View) {
        attacked(view, "2", &[], &["--runner", "threaded"]);
    }

    fn hostile_batches_of_an_unprivileged_user_harm_no_neighbour_of_another(view: View) {
        if !rustix::process::geteuid().is_root() {
            let test = "hostile_batches_of_an_unprivileged_user_harm_no_neighbour_of_another";
            return skip(&format!("{test} ({})", view.name()), "becomes another user, which only root can");
        }
        attacked(view, "3", &USERS, &[]);
    }
}
