//! Text that is written for every request: without the detours that `format!` takes.

use std::fmt::Write as _;

/// What text is appended to.
pub trait Text {
    /// Appends it.
    fn put(&mut self, text: &str);
}

impl Text for String {
    #[inline]
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

impl Text for Vec<u8> {
    #[inline]
    fn put(&mut self, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
}

/// Appends a number.
pub(super) fn push_number(text: &mut impl Text, number: u64) {
    text.put(itoa::Buffer::new().format(number));
}

/// How many digits a number has.
pub(super) fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Whether all bytes stand for themselves wherever we write them. Without a way out in between, so that many are looked at at once.
fn is_plain(content: &str) -> bool {
    let is_odd = |byte: u8| !(b' '..=b'~').contains(&byte) | (byte == b'"') | (byte == b'\\');
    !content.bytes().fold(false, |odd, byte| odd | is_odd(byte))
}

/// Appends a String of RFC 9651, which knows printable ASCII and nothing else.
pub(super) fn push_quoted(text: &mut String, content: &str) {
    text.push('"');
    if is_plain(content) {
        text.push_str(content);
    } else {
        for c in content.chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                ' '..='~' => text.push(c),
                _ => text.push('?'),
            }
        }
    }
    text.push('"');
}

/// Appends a string of JSON.
pub(super) fn push_json(text: &mut String, content: &str) {
    text.push('"');
    push_escaped(text, content);
    text.push('"');
}

/// Appends what is between the quotes of a string of JSON.
pub(super) fn push_escaped(text: &mut String, content: &str) {
    if is_plain(content) {
        return text.push_str(content);
    }
    for c in content.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\0'..='\x1f' => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            _ => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_anybody_would() {
        for n in [0, 1, 9, 10, 99, 100, 1_234_567_890, u64::MAX] {
            let mut text = String::new();
            push_number(&mut text, n);
            assert_eq!((&text, digits(n)), (&n.to_string(), n.to_string().len()));
        }
    }

    #[test]
    fn strings_are_written_as_their_formats_want_them() {
        for (content, json, quoted) in [
            ("plain", r#""plain""#, r#""plain""#),
            ("a\"b\\c", r#""a\"b\\c""#, r#""a\"b\\c""#),
            ("line\nend", r#""line\nend""#, r#""line?end""#),
            ("café", r#""café""#, r#""caf?""#),
            ("", r#""""#, r#""""#),
        ] {
            let (mut one, mut other) = (String::new(), String::new());
            push_json(&mut one, content);
            push_quoted(&mut other, content);
            assert_eq!((one.as_str(), other.as_str()), (json, quoted));
            assert_eq!(serde_json::from_str::<String>(&one).unwrap_or_default(), content);
        }
    }
}
