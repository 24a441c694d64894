//! Reads the fields of a protobuf message. Source: protobuf.dev, Encoding.

/// The fields of a message, in their order; `None` for the first one that is damaged, and then no more.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

/// A field.
pub(super) struct Field<'a> {
    pub(super) number: u64,
    /// Its bytes: a text, bytes or a message; `None` for a number.
    bytes: Option<&'a [u8]>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Option<Field<'a>>> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let key = self.number()?;
        let bytes = match key & 7 {
            0 => self.number().map(|_| None)?,
            1 => self.take(8).map(|_| None)?,
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                Some(self.take(len)?)
            }
            5 => self.take(4).map(|_| None)?,
            _ => return None,
        };
        Some(Field { number: key >> 3, bytes })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a number of seven bits a byte, the lowest ones first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for at in 0..10 {
            let [byte] = *self.take(1)? else { return None };
            number |= u64::from(byte & 127).checked_shl(7 * at)?;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }
}

/// Returns the bytes of a field if it has this number, and bytes.
pub(super) fn bytes_of<'a>(field: &Field<'a>, number: u64) -> Option<&'a [u8]> {
    field.bytes.filter(|_| field.number == number)
}

/// Returns the text of a field, without control characters and at most so many characters; `None` if it is no text.
pub(super) fn text_of(field: &Field<'_>, number: u64, most: usize) -> Option<String> {
    let text = std::str::from_utf8(bytes_of(field, number)?).ok()?;
    Some(text.chars().map(|c| if c.is_control() { '?' } else { c }).take(most).collect())
}
