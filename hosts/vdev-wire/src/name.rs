//! The name of an open node's socket in the abstract namespace. A program that got the descriptor without opening it
//! (kept across exec, received) can identify the node by this name.
//!
//! All users of the machine see these names and can take any that is free. So each ends with a random number, and no
//! user can take the next names.

/// An open node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeName {
    /// Number of the open file in the run.
    pub open: u64,
    /// Device, `dsaM`.
    pub device: u32,
    /// Queue, `wqM.N`.
    pub wq: u32,
}

impl NodeName {
    /// The name in a run: `run-1234-9f2c/17/0.3/` and the random number in 16 hexadecimal digits.
    #[must_use]
    pub fn to_text(&self, run: &str, random: u64) -> String {
        format!("{run}/{}/{}.{}/{random:016x}", self.open, self.device, self.wq)
    }

    /// Parses a name of that run; `None` for every other name. Does not allocate.
    #[must_use]
    pub fn parse(run: &[u8], name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name.strip_prefix(run)?.strip_prefix(b"/")?).ok()?;
        let (open, queue) = without_random(text)?.split_once('/')?;
        let (device, wq) = queue.split_once('.')?;
        Some(NodeName { open: open.parse().ok()?, device: device.parse().ok()?, wq: wq.parse().ok()? })
    }
}

/// A name without the random number at its end.
fn without_random(name: &str) -> Option<&str> {
    let (name, random) = name.rsplit_once('/')?;
    (random.len() == 16 && u64::from_str_radix(random, 16).is_ok()).then_some(name)
}

/// Defines the name of a socket that has only a number.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident, $kind:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub u64);

        impl $name {
            /// The name in a run.
            #[must_use]
            pub fn to_text(&self, run: &str, random: u64) -> String {
                format!(concat!("{}/", $kind, "/{}/{:016x}"), run, self.0, random)
            }

            /// Parses a name of that run; `None` for every other name. Does not allocate.
            #[must_use]
            pub fn parse(run: &[u8], name: &[u8]) -> Option<Self> {
                let number = name.strip_prefix(run)?.strip_prefix(concat!("/", $kind, "/").as_bytes())?;
                without_random(std::str::from_utf8(number).ok()?)?.parse().ok().map($name)
            }
        }
    };
}

numbered! {
    /// The name of a perf event's socket: `run-1234-9f2c/perf/17/` and the random number.
    PerfName, "perf"
}
numbered! {
    /// The name of a window's socket: `run-1234-9f2c/window/17/` and the random number.
    WindowName, "window"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_events_windows_and_nodes_are_told_apart() {
        let names = [
            PerfName(7).to_text("run-1", 5),
            WindowName(7).to_text("run-1", 5),
            NodeName { open: 7, device: 0, wq: 1 }.to_text("run-1", 5),
        ];
        let parsed = names.map(|name| {
            let name = name.as_bytes();
            let numbers =
                [PerfName::parse(b"run-1", name).map(|of| of.0), WindowName::parse(b"run-1", name).map(|of| of.0)];
            (numbers, NodeName::parse(b"run-1", name).is_some())
        });
        assert_eq!(parsed, [([Some(7), None], false), ([None, Some(7)], false), ([None, None], true)]);
    }

    #[test]
    fn a_name_identifies_the_run_and_the_node() {
        let name = NodeName { open: u64::MAX, device: 3, wq: 15 };
        let text = name.to_text("telpher-1-ab", u64::MAX);
        assert_eq!(NodeName::parse(b"telpher-1-ab", text.as_bytes()), Some(name));
        assert_eq!(NodeName::parse(b"telpher-1-a", text.as_bytes()), None);
        for other in [
            "",
            "telpher-1-ab",
            "telpher-1-ab/",
            "telpher-1-ab/1",
            "telpher-1-ab/1/2.3",
            "telpher-1-ab/1/2.3/0",
            &text[..text.len() - 1],
        ] {
            assert_eq!(NodeName::parse(b"telpher-1-ab", other.as_bytes()), None, "{other}");
        }
    }
}
