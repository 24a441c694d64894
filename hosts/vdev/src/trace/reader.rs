//! Reads the lines of a trace.

use super::{Line, ParseError};
use std::io::{self, BufRead, Read as _};

/// Maximum bytes of a line. Source: chosen; `telpher run` writes lines of a few hundred.
const LONGEST: u64 = 1 << 20;

/// Why a line of a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system's error.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The line is not one of a trace.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The line is too long.
    #[error("line {line} is longer than {LONGEST} bytes")]
    Long {
        /// The number of the line, from 1.
        line: u64,
    },
}

/// Reads the lines of a trace, in either format.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    text: String,
    number: u64,
    torn: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads from an input.
    pub fn new(input: R) -> Reader<R> {
        Reader { input, text: String::new(), number: 0, torn: false }
    }

    /// Returns the next line; `None` at the end.
    ///
    /// # Errors
    /// If the line cannot be read, is too long, or is not one of a trace.
    pub fn next_line(&mut self) -> Result<Option<Line>, ReadError> {
        self.text.clear();
        let read = self.input.by_ref().take(LONGEST + 1).read_line(&mut self.text)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if read as u64 > LONGEST {
            return Err(ReadError::Long { line: self.number });
        }
        match Line::parse(self.text.trim_end_matches('\n'), self.number) {
            Ok(line) => Ok(Some(line)),
            Err(_) if self.number > 1 && !self.text.ends_with('\n') => {
                self.torn = true;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if the last line is incomplete: the run was killed while it wrote the line.
    pub fn is_torn(&self) -> bool {
        self.torn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "0.000006000 2/2 wq0.1 lost entries=4\n";

    #[test]
    fn an_incomplete_last_line_ends_the_trace() {
        let text = format!("{LINE}{}", &LINE[..20]);
        let mut reader = Reader::new(text.as_bytes());
        assert!(reader.next_line().unwrap().is_some() && !reader.is_torn());
        assert!(reader.next_line().unwrap().is_none() && reader.is_torn());
    }

    #[test]
    fn another_bad_line_is_refused_with_its_number() {
        let text = format!("{LINE}oops\n{LINE}");
        let mut reader = Reader::new(text.as_bytes());
        assert!(reader.next_line().unwrap().is_some());
        assert_eq!(reader.next_line().unwrap_err().to_string(), "line 2 is not a line of a trace: oops");
        assert!(Reader::new("hello".as_bytes()).next_line().is_err());
    }

    #[test]
    fn an_endless_line_is_refused_after_a_mebibyte() {
        let mut reader = Reader::new(io::BufReader::new(io::repeat(0)));
        assert_eq!(reader.next_line().unwrap_err().to_string(), "line 1 is longer than 1048576 bytes");
    }
}
