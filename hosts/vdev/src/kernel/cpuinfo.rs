//! /proc/cpuinfo with the emulated instructions, and the CPU list and mask derived from it.

/// The CPU flags that the view adds. Source: instructions.md §1.
const ADDED: &[&str] = &["movdiri", "movdir64b", "waitpkg"];
/// The flag that the view adds where the kernel lets programs use PASIDs.
const ENQCMD: &str = "enqcmd";

/// The machine's processors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cpus {
    text: String,
    count: usize,
}

impl Cpus {
    /// Parses the machine's own text and adds the flags.
    pub(crate) fn of(text: &str, enqcmd: bool) -> Self {
        let count = text.lines().filter(|line| key(line) == Some("processor")).count();
        let shown = text.split_inclusive('\n').map(|line| {
            if key(line) != Some("flags") {
                return line.to_owned();
            }
            let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
            let mut body = body.trim_end().to_owned();
            let words = ADDED.iter().copied().chain(enqcmd.then_some(ENQCMD));
            let missing: Vec<&str> = words.filter(|word| !body.split_whitespace().any(|flag| flag == *word)).collect();
            for word in missing {
                body.push(' ');
                body.push_str(word);
            }
            body + end
        });
        Cpus { text: shown.collect(), count }
    }

    /// The text of the view's /proc/cpuinfo.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// All processors as a list, `0-3`.
    pub(crate) fn list(&self) -> String {
        match self.count {
            0 | 1 => "0".into(),
            more => format!("0-{}", more - 1),
        }
    }

    /// All processors as a mask: words of 32 bits, most significant first.
    pub(crate) fn mask(&self) -> String {
        let count = self.count.max(1);
        let words = count.div_ceil(32);
        let word = |index: usize| {
            let bits = (count - 32 * index).min(32);
            (1_u64 << bits) - 1
        };
        let first = format!("{:x}", word(words - 1));
        (0..words - 1).rev().fold(first, |text, index| format!("{text},{:08x}", word(index)))
    }
}

fn key(line: &str) -> Option<&str> {
    line.split_once(':').map(|(key, _)| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "processor\t: 0\nflags\t\t: fpu vme movdiri\nbugs\t\t: x\n\nprocessor\t: 1\nflags\t\t: fpu vme\n";

    #[test]
    fn missing_flags_are_added_once() {
        let cpus = Cpus::of(TEXT, true);
        let expected = "processor\t: 0\nflags\t\t: fpu vme movdiri movdir64b waitpkg enqcmd\nbugs\t\t: x\n\n\
                        processor\t: 1\nflags\t\t: fpu vme movdiri movdir64b waitpkg enqcmd\n";
        assert_eq!(cpus.text(), expected);
        assert_eq!(Cpus::of(expected, true).text(), expected);
        assert!(!Cpus::of(TEXT, false).text().contains("enqcmd"));
    }

    #[test]
    fn processors_are_listed_and_masked() {
        let with = |count| Cpus { text: String::new(), count };
        let cases =
            [(0, "0", "1"), (1, "0", "1"), (2, "0-1", "3"), (32, "0-31", "ffffffff"), (40, "0-39", "ff,ffffffff")];
        for (count, list, mask) in cases {
            assert_eq!((with(count).list().as_str(), with(count).mask().as_str()), (list, mask));
        }
        assert_eq!(Cpus::of(TEXT, true).count, 2);
    }
}
