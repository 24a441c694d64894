//! The fields of a trace's lines, for CSV.

use super::Line;

/// Names of the fields. `text` is the whole line as people read it.
pub const COLUMNS: [&str; 12] = [
    "time_ns",
    "process",
    "thread",
    "queue",
    "kind",
    "number",
    "how",
    "operation",
    "result",
    "duration_ns",
    "retries",
    "text",
];

impl Line {
    /// Returns the fields of the line, one for each of [`COLUMNS`].
    #[must_use]
    pub fn fields(&self) -> [String; COLUMNS.len()] {
        let origin = self.origin();
        let [kind, number, how, operation, result, duration_ns, retries] = match self {
            Line::Descriptor(story) => [
                "descriptor".into(),
                story.which.to_string(),
                story.how.clone().unwrap_or_default(),
                story.operation.clone(),
                story.status_name.clone().unwrap_or_else(|| story.end.clone()),
                story.duration_ns.map_or_else(String::new, |time| time.to_string()),
                story.retries.to_string(),
            ],
            Line::Misuse(misuse) => ["misuse", "", "", "", &misuse.misuse, "", ""].map(String::from),
            Line::Lost(_) => ["lost", "", "", "", "", "", ""].map(String::from),
        };
        [
            origin.time_ns.to_string(),
            origin.process.to_string(),
            origin.thread.to_string(),
            origin.queue.clone(),
            kind,
            number,
            how,
            operation,
            result,
            duration_ns,
            retries,
            self.to_string().trim().to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_a_field() {
        let fields = |text: &str| Line::parse(text, 1).unwrap().fields().join("|");
        let submitted = "0.000001000 1/2 wq0.0 #1 enqcmd memory-move(src=0x10, dst=0x20, size=64, flags=crav|rcr) = \
                         0x01 success <5.000us>";
        let expected = "1000|1|2|wq0.0|descriptor|#1|enqcmd|memory-move|success|5000|0|0.000001000 1/2 wq0.0 #1";
        assert!(fields(submitted).starts_with(expected), "{}", fields(submitted));
        let misuse = "0.000005000 2/2 wq0.1 misuse read-after-write address=0x20 len=64: #2 source-1 of fill(dst=0x20)";
        assert!(fields(misuse).starts_with("5000|2|2|wq0.1|misuse||||read-after-write|||"), "{}", fields(misuse));
        let lost = "0.000006000 2/2 wq0.1 lost entries=4";
        assert_eq!(fields(lost), format!("6000|2|2|wq0.1|lost|||||||{lost}"));
    }
}
