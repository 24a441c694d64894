//! One self-contained page: no script, no external resource, readable in light and dark.

use crate::chart::STYLES;
use crate::hover::escape;
use crate::machine::Machine;
use crate::units;
use std::fmt::Write as _;

/// A chart with its title.
#[derive(Clone, Debug)]
pub struct Figure<'a> {
    /// The title.
    pub caption: String,
    /// The drawing; a chart without one is omitted.
    pub svg: String,
    /// Its own legend; empty if the section has a common one.
    pub legend: Vec<(usize, &'a str)>,
}

/// An HTML page under construction.
#[derive(Debug)]
pub struct Page {
    html: String,
}

impl Page {
    /// Starts a page with head, title, an opening paragraph and the machine.
    pub fn new(title: &str, opening: &str, machine: &Machine, remarks: &[String]) -> Self {
        Page::with_facts(title, opening, &facts(machine), remarks)
    }

    /// Starts a page with head, title, an opening paragraph and a notice.
    pub fn with_facts(title: &str, opening: &str, facts: &[(&str, String)], remarks: &[String]) -> Self {
        let mut page = Page { html: String::new() };
        let _ = write!(
            page.html,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light \
             dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p \
             class=\"opening\">{opening}</p>\n",
            title = escape(title),
            opening = escape(opening),
        );
        for remark in remarks {
            let _ = writeln!(page.html, "<p class=\"remark\">{}</p>", escape(remark));
        }
        page.html.push_str("<dl class=\"machine\">\n");
        for (name, value) in facts {
            let _ = writeln!(page.html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
        }
        page.html.push_str("</dl>\n");
        page
    }

    /// Adds a heading and a paragraph about what is shown and how it was measured.
    pub fn section(&mut self, heading: &str, paragraph: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>\n<p>{}</p>", escape(heading), escape(paragraph));
    }

    /// Adds a paragraph of small print.
    pub fn small(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p class=\"small\">{}</p>", escape(text));
    }

    /// Adds a legend.
    pub fn legend<'a>(&mut self, entries: impl IntoIterator<Item = (usize, &'a str)>) {
        self.html.push_str("<ul class=\"legend\">\n");
        for (style, name) in entries {
            let _ = writeln!(
                self.html,
                "<li><span style=\"background:var(--s{})\"></span>{}</li>",
                style % STYLES,
                escape(name)
            );
        }
        self.html.push_str("</ul>\n");
    }

    /// Adds charts side by side, as the window's width allows.
    pub fn charts<'a>(&mut self, charts: impl IntoIterator<Item = Figure<'a>>) {
        self.html.push_str("<div class=\"charts\">\n");
        for figure in charts.into_iter().filter(|f| !f.svg.is_empty()) {
            let caption = escape(&figure.caption);
            let _ = writeln!(self.html, "<figure>\n<figcaption>{caption}</figcaption>");
            if !figure.legend.is_empty() {
                self.legend(figure.legend);
            }
            let svg = figure.svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{caption}\" "), 1);
            let _ = writeln!(self.html, "{svg}</figure>");
        }
        self.html.push_str("</div>\n");
    }

    /// Adds a table; columns of words are left-aligned, of numbers right-aligned.
    pub fn table(&mut self, header: &[String], rows: impl IntoIterator<Item = Vec<String>>) {
        let rows: Vec<Vec<String>> = rows.into_iter().collect();
        let class = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            if cells.clone().any(|cell| is_sentence(cell)) {
                " class=\"words sentence\""
            } else if column == 0
                || !cells.clone().any(|cell| is_number(cell))
                || cells.clone().any(|cell| is_word(cell))
            {
                " class=\"words\""
            } else {
                ""
            }
        };
        let classes: Vec<&str> = (0..header.len()).map(class).collect();
        self.cells(header, &rows, &classes);
    }

    /// Adds a table of sentences: every column is left-aligned and may wrap.
    pub fn sentences(&mut self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        let header: Vec<String> = header.iter().map(ToString::to_string).collect();
        let rows: Vec<Vec<String>> = rows.into_iter().collect();
        self.cells(&header, &rows, &vec![" class=\"words prose\""; header.len()]);
    }

    fn cells(&mut self, header: &[String], rows: &[Vec<String>], classes: &[&str]) {
        self.html.push_str("<div class=\"table\"><table>\n");
        let mut line = |tag: &str, cells: &[String]| {
            self.html.push_str("<tr>");
            for (cell, class) in cells.iter().zip(classes) {
                let _ = write!(self.html, "<{tag}{class}>{}</{tag}>", escape(cell));
            }
            self.html.push_str("</tr>\n");
        };
        line("th", header);
        rows.iter().for_each(|row| line("td", row));
        self.html.push_str("</table></div>\n");
    }

    /// Adds a file's text.
    pub fn listing(&mut self, text: &str) {
        let _ = writeln!(self.html, "<pre>{}</pre>", escape(text));
    }

    /// Adds a part that is collapsed at first.
    pub fn details(&mut self, summary: &str, inner: impl FnOnce(&mut Page)) {
        let _ = writeln!(self.html, "<details><summary>{}</summary>", escape(summary));
        inner(self);
        self.html.push_str("</details>\n");
    }

    /// Adds a link to a file beside the page.
    pub fn file(&mut self, name: &str, words: &str) {
        let _ = writeln!(self.html, "<p class=\"small\"><a href=\"{}\">{}</a></p>", escape(name), escape(words));
    }

    /// Returns the whole page.
    pub fn finish(mut self) -> String {
        self.html.push_str("</main>\n</body>\n</html>\n");
        self.html
    }
}

/// The end of the facts about the machine, which every page has.
const FACTS_END: &str = "</dl>\n";

/// Returns a page with a link to its data. The data are in the link, so that the page needs no file beside it.
#[must_use]
pub fn with_data(page: &str, file_name: &str, csv: &str) -> String {
    let mut link = format!(
        "{FACTS_END}<p class=\"small\"><a download=\"{}\" href=\"data:text/csv;charset=utf-8,",
        escape(file_name)
    );
    for byte in csv.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b',' => link.push(char::from(byte)),
            _ => {
                let _ = write!(link, "%{byte:02X}");
            }
        }
    }
    link.push_str("\">All numbers as CSV</a></p>\n");
    page.replacen(FACTS_END, &link, 1)
}

/// Returns the machine's description above a measurement.
fn facts(m: &Machine) -> [(&'static str, String); 8] {
    let cache = |bytes: Option<u64>| bytes.map_or("not told".into(), units::size);
    let place = if m.virtual_machine { ", virtual machine" } else { "" };
    [
        ("Processor", format!("{}{place}", m.cpu)),
        ("Cores used", format!("{} (numbers {})", m.cores.len(), listed(&m.cores))),
        ("Cache", format!("L2 {} a core, last level {}", cache(m.l2_bytes), cache(m.llc_bytes))),
        ("NUMA nodes", listed(&m.nodes)),
        ("Kernel", m.kernel.clone()),
        ("Date", m.date.clone()),
        ("Command", m.command.clone()),
        ("Version", format!("telpher {}", m.version)),
    ]
}

/// Formats a list: `0, 1, 2`.
fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

const STYLE: &str = "\
:root { --ink:#1d2329; --soft:#56616c; --grid:#dfe4e8; --page:#fdfdfc; --card:#ffffff; --edge:#e3e7ea; --note:#fff4d6;
  --s0:#30363d; --s1:#d9730d; --s2:#a08900; --s3:#1769aa; --s4:#0a8f7b; --s5:#8a3fb0; --s6:#c2255c; --s7:#6b7f00;
  --s8:#8b5a2b; --s9:#5c7c9c; --s10:#e05d44; --s11:#4c6b3c; }
@media (prefers-color-scheme: dark) {
:root { --ink:#e3e8ec; --soft:#9aa7b2; --grid:#343c44; --page:#14181c; --card:#1a2025; --edge:#2b333a; --note:#3a3116;
  --s0:#d5dbe0; --s1:#ffa04d; --s2:#e6d24a; --s3:#5db3f5; --s4:#3fd1b8; --s5:#cf8df0; --s6:#ff7fab; --s7:#bfd13f;
  --s8:#d9a066; --s9:#9fbcd8; --s10:#ff8f75; --s11:#9cc98a; } }
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink); font:16px/1.55 system-ui,-apple-system,'Segoe UI',sans-serif }
main { max-width:1180px; margin:0 auto; padding:2rem 1.25rem 4rem }
a { color:inherit }
h1 { font-size:1.9rem; line-height:1.2; margin:0 0 .6rem } h2 { font-size:1.3rem; margin:2.6rem 0 .4rem }
p { max-width:76ch; margin:.4rem 0 } .opening { font-size:1.08rem } .small { color:var(--soft); font-size:.88rem }
.remark { background:var(--note); padding:.45rem .75rem; border-radius:6px }
.machine { display:grid; grid-template-columns:repeat(auto-fit,minmax(300px,1fr)); gap:.15rem 2rem; margin:1.2rem 0; font-size:.92rem }
.machine div { display:flex; gap:.75rem } .machine dt { color:var(--soft); flex:0 0 6.5rem } .machine dd { margin:0; overflow-wrap:anywhere }
.legend { list-style:none; display:flex; flex-wrap:wrap; gap:.3rem 1.3rem; padding:0; margin:.8rem 0 .4rem; font-size:.92rem }
.legend span { display:inline-block; width:1.5em; height:.32em; margin-right:.5em; vertical-align:middle; border-radius:2px }
.charts { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr)); gap:1rem; margin:.8rem 0 }
figure { margin:0; max-width:680px; padding:.7rem .7rem .3rem; background:var(--card); border:1px solid var(--edge); border-radius:8px }
figcaption { font-weight:600; font-size:.95rem; padding:0 .3rem } svg { width:100%; height:auto; display:block }
svg text { font-family:system-ui,-apple-system,'Segoe UI',sans-serif }
.table { overflow-x:auto; margin:.8rem 0 } table { border-collapse:collapse; font-size:.88rem; font-variant-numeric:tabular-nums }
th,td { padding:.22rem .7rem; text-align:right; border-bottom:1px solid var(--edge); white-space:nowrap }
th { color:var(--soft); font-weight:600 } .words { text-align:left } .sentence { white-space:normal; min-width:16rem }
.prose { white-space:normal; min-width:5.5rem; vertical-align:top }
pre { overflow-x:auto; padding:.7rem; background:var(--card); border:1px solid var(--edge); border-radius:8px; font-size:.85rem }
details { margin:1rem 0 } summary { cursor:pointer; color:var(--soft) }
";

/// Longer cells are treated as sentences and may wrap. Source: chosen; the longest number with its
/// units is shorter.
const LONGEST_NUMBER: usize = 28;

fn is_sentence(cell: &str) -> bool {
    cell.chars().count() > LONGEST_NUMBER
}

fn is_word(cell: &str) -> bool {
    cell.starts_with(char::is_alphabetic)
}

fn is_number(cell: &str) -> bool {
    cell.trim_start_matches(['≤', '≥', '<', '>', '+', '-', ' ']).starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::new("A <title>", "Opening.", &Machine::read(), &["Mind & this.".into()])
    }

    #[test]
    fn untrusted_text_is_escaped() {
        let html = page().finish();
        assert!(html.contains("A &lt;title&gt;") && html.contains("Mind &amp; this."));
        assert!(!html.contains("A <title>"));
    }

    #[test]
    fn word_columns_are_left_aligned_and_number_columns_right_aligned() {
        let mut page = page();
        let row = |cells: [&str; 5]| cells.map(String::from).to_vec();
        let header = row(["what", "measured", "goal", "", "how"]);
        let how = "64 bytes, from the call to its return, in turns";
        page.table(&header, [row(["1 MiB copies", "12.5 ns", "≤ 300", "<", how]), row(["b", "–", "+3 %", "", "once"])]);
        let html = page.finish();
        for cell in [
            "<th class=\"words\">what<",
            "<td>12.5 ns<",
            "<th>goal<",
            "<td>+3 %<",
            "<td class=\"words sentence\">once<",
        ] {
            assert!(html.contains(cell), "{cell} is missing in {html}");
        }
    }

    #[test]
    fn the_data_are_in_a_link_that_needs_no_file() {
        let page = with_data(&page().finish(), "telpher-\"bench\".csv", "op,GB/s\n\"a\",5 %\n");
        let link = "href=\"data:text/csv;charset=utf-8,op,GB%2Fs%0A%22a%22,5%20%25%0A\">All numbers as CSV</a>";
        assert!(page.contains(link) && page.contains("download=\"telpher-&quot;bench&quot;.csv\""), "{page}");
        assert_eq!(page.matches("href=").count(), 1, "{page}");
    }

    #[test]
    fn the_page_loads_no_external_resource() {
        let mut page = page();
        page.charts([Figure { caption: "c".into(), svg: "<svg width=\"1\"></svg>".into(), legend: vec![(0, "l")] }]);
        page.table(&["a".into()], [vec!["1".into()]]);
        let html = page.finish();
        for word in ["src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(html.contains("aria-label=\"c\""));
    }
}
