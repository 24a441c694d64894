//! The settings that a guest reads from its environment before its first request.
//!
//! ```text
//! TELPHER_RUN=<view>,<rewrite>,<follow>,<windows>,<run directory>
//!             preload,rewrite,follow,no-windows,/run/telpher/0/run-1234-9f2c
//! TELPHER_INSTRUCTIONS=movdir64b enqcmd waitpkg     the emulated instructions; CPUID cannot report them
//! ```

/// The variable with the settings; without it the guest does nothing.
pub const RUN: &str = "TELPHER_RUN";
/// The variable with the emulated instructions, as flags of /proc/cpuinfo separated by blanks. Documented for users:
/// CPUID cannot be trapped, so a program can read this variable instead.
pub const INSTRUCTIONS: &str = "TELPHER_INSTRUCTIONS";
/// Value of [`INSTRUCTIONS`].
pub const EMULATED: &str = "movdir64b enqcmd waitpkg";
/// Name of the control socket in the run directory (`SOCK_SEQPACKET`).
pub const SOCKET: &str = "socket";
/// Name of the shadow tree in the run directory, if the view is [`View::Preload`].
pub const SHADOW: &str = "view";

/// How the program sees the device's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// The guest translates paths into the shadow tree.
    Preload,
    /// A private mount namespace contains them; the guest does not translate paths.
    Namespace,
}

/// The settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings<'a> {
    /// How the program sees the device's files.
    pub view: View,
    /// Whether submission sites are rewritten after their first trap.
    pub rewrite: bool,
    /// Whether programs that are executed get the guest too, whatever environment they are given.
    pub follow: bool,
    /// Whether queues have the ioctls for windows between processes.
    pub windows: bool,
    /// The run directory, absolute.
    pub directory: &'a [u8],
}

impl<'a> Settings<'a> {
    /// Parses the variable's value; `None` if it is invalid. Does not allocate.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let mut parts = value.splitn(5, |byte| *byte == b',');
        let view = match parts.next()? {
            b"preload" => View::Preload,
            b"namespace" => View::Namespace,
            _ => return None,
        };
        let rewrite = match parts.next()? {
            b"rewrite" => true,
            b"trap" => false,
            _ => return None,
        };
        let follow = match parts.next()? {
            b"follow" => true,
            b"no-follow" => false,
            _ => return None,
        };
        let windows = match parts.next()? {
            b"windows" => true,
            b"no-windows" => false,
            _ => return None,
        };
        let directory = parts.next().filter(|directory| directory.first() == Some(&b'/'))?;
        Some(Settings { view, rewrite, follow, windows, directory })
    }

    /// Formats the variable's value.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let view: &[u8] = match self.view {
            View::Preload => b"preload",
            View::Namespace => b"namespace",
        };
        let rewrite: &[u8] = if self.rewrite { b"rewrite" } else { b"trap" };
        let follow: &[u8] = if self.follow { b"follow" } else { b"no-follow" };
        let windows: &[u8] = if self.windows { b"windows" } else { b"no-windows" };
        [view, rewrite, follow, windows, self.directory].join(&b","[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_environment() {
        for view in [View::Preload, View::Namespace] {
            for bits in 0..8 {
                let [rewrite, follow, windows] = [1, 2, 4].map(|bit| bits & bit != 0);
                let settings = Settings { view, rewrite, follow, windows, directory: b"/tmp/a,b" };
                assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
            }
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        let whole = "preload,rewrite,follow,windows,";
        let broken = (0..=whole.len()).map(|len| whole[..len].to_owned());
        let wrong = [
            "preload,rewrite,follow,windows,tmp",
            "x,rewrite,follow,windows,/tmp",
            "preload,x,follow,windows,/tmp",
            "preload,trap,x,windows,/tmp",
            "preload,trap,follow,x,/tmp",
        ];
        for value in broken.chain(wrong.map(str::to_owned)) {
            assert_eq!(Settings::parse(value.as_bytes()), None, "{value}");
        }
    }
}
