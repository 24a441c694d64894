//! The reasons why DAMON cannot be used.

use std::io;

/// NotTaken DAMON cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamonError {
    /// The kernel was built without it.
    #[error(
        "this kernel has no DAMON for the memory of programs: that needs Linux 6.2 or later with CONFIG_DAMON_SYSFS \
         and CONFIG_DAMON_VADDR; leave the choice of the source to telpher, or request another one"
    )]
    Missing,
    /// This user has no permission.
    #[error("this user may not use DAMON: run as root, or request another source")]
    Forbidden(#[source] io::Error),
    /// Other software uses it, and there is only one.
    #[error(
        "other software uses DAMON ({other}), and a machine has only one; end it (for example with `damo stop`), or, \
         if it is a leftover, write off to {folder}/0/state and 0 to {folder}/nr_kdamonds"
    )]
    Busy {
        /// What its files contain.
        other: String,
        /// Its folder.
        folder: String,
    },
    /// Another user in the kernel requires exclusive use.
    #[error(
        "another user in the kernel has DAMON for itself, such as damon_reclaim or damon_lru_sort; \
         write N to /sys/module/NAME/parameters/enabled of that module, or request another source"
    )]
    Alone(#[source] io::Error),
    /// Other software has changed what was set up.
    #[error(
        "other software has changed DAMON's settings ({other}); \
         telpher leaves them as they are now and no longer uses DAMON"
    )]
    Lost {
        /// What the files contain now.
        other: String,
    },
    /// A process of this library uses it.
    #[error(
        "{} uses DAMON for its own memory, and a machine has only one; end that use, or request another source",
        pid.map_or("this process".into(), |pid| format!("telpher in process {pid}"))
    )]
    Ours {
        /// That process; none for this one.
        pid: Option<i32>,
    },
    /// A value was refused.
    #[error("cannot write {value} to DAMON's {file}; other software may have changed its files")]
    Write {
        /// The file.
        file: String,
        /// The value written.
        value: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read DAMON's {file}; other software may have changed its files")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file's content is not a number.
    #[error("DAMON's {file} contains {content:?}, which is not a number")]
    Words {
        /// The file.
        file: String,
        /// Its content, shortened.
        content: String,
    },
    /// The system refused the thread that reads DAMON.
    #[error("cannot start the thread that reads DAMON")]
    Thread(#[source] io::Error),
    /// That thread has ended.
    #[error("the thread that reads DAMON has ended; please report this bug")]
    Ended,
}
