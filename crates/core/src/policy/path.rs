//! Paths: one normal form, and patterns that match it.

use std::borrow::Cow;
use std::fmt::Write;

/// What becomes of a byte of a path.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// It stands for itself, and so does its escape.
    Plain,
    /// It stands for itself, and its escape for something else.
    Backslash,
    Dot,
    Percent,
    /// It has to be written as an escape.
    Foreign,
    /// It begins the parameters of a segment.
    Semicolon,
}

fn class(byte: u8) -> Class {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => Class::Plain,
        // Reserved by the letter of the standard, and the same as their escapes to the servers behind us.
        b'!' | b'$' | b'&'..=b',' | b'=' | b':' | b'@' => Class::Plain,
        b'\\' => Class::Backslash,
        b'.' => Class::Dot,
        b'%' => Class::Percent,
        b';' => Class::Semicolon,
        _ => Class::Foreign,
    }
}

/// The one form of all paths that a server may take for the same: `//a/./b/../%62;v=1/` is `/a/b`.
///
/// - It begins with a slash, has none at its end (but for the root) and none twice.
/// - `.` and `..` are resolved, also if they came as `%2e`. Nothing is above the root.
/// - Parameters of a segment, from `;` to the next slash, are left out: servers route without them.
/// - Escapes of letters, digits, `-._~` and `!$&'()*+,=:@` are decoded, once. All others stay, in upper case: `%2F` is no
///   slash, and `%252e` is not a dot. A `%` that begins no escape is `%25`.
/// - What may not stand in a path as it is (controls, spaces, letters outside ASCII) is escaped. A backslash stays.
/// - Upper and lower case are different. [`PathPattern::ignoring_case`] matches paths regardless of case.
///
/// A path that is in this form already is not copied.
pub fn normal(path: &str) -> Cow<'_, str> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in path.split('/') {
        let start = out.len();
        out.push('/');
        write_segment(&mut out, segment);
        match out.get(start..) {
            Some("/" | "/.") => out.truncate(start),
            Some("/..") => {
                out.truncate(start);
                out.truncate(out.rfind('/').unwrap_or(0));
            }
            _ => {}
        }
    }
    if out.is_empty() {
        out.push('/');
    }
    Cow::Owned(out)
}

/// Most paths are, and this runs for every request. So all bytes are looked at without a branch, which the compiler
/// does to many at once; only a path with something odd in it is read byte by byte.
fn is_normal(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else {
        return false;
    };
    let common = |byte: u8| {
        // In order: letters, `& ' ( ) * + , - . /` and digits up to `:`, and one more.
        ((byte | 0x20).wrapping_sub(b'a') < 26) | (byte.wrapping_sub(b'&') <= b':' - b'&') | (byte == b'_')
    };
    let odd = rest.bytes().fold(false, |odd, byte| odd | !common(byte));
    let pairs = path.bytes().zip(rest.bytes());
    let odd = pairs.fold(odd, |odd, (a, b)| odd | ((a == b'/') & ((b == b'/') | (b == b'.'))));
    (!odd && !rest.ends_with('/')) || rest.is_empty() || rest.split('/').all(is_normal_segment)
}

fn is_normal_segment(segment: &str) -> bool {
    let mut bytes = segment.as_bytes();
    while let Some((byte, rest)) = bytes.split_first() {
        bytes = match (class(*byte), escape(rest)) {
            (Class::Plain | Class::Backslash | Class::Dot, _) => rest,
            (Class::Percent, Some((value, more))) if stays_escaped(value) && !has_lower(rest) => more,
            _ => return false,
        };
    }
    !matches!(segment, "" | "." | "..")
}

/// The value of the two digits behind a `%`, and what follows them.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], rest) = text.split_first_chunk()?;
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some((digit(high)? << 4 | digit(low)?, rest))
}

fn has_lower(escape: &[u8]) -> bool {
    escape.iter().take(2).any(u8::is_ascii_lowercase)
}

fn stays_escaped(value: u8) -> bool {
    !matches!(class(value), Class::Plain | Class::Dot)
}

fn write_segment(out: &mut String, segment: &str) {
    let mut bytes = segment.as_bytes();
    while let Some((byte, rest)) = bytes.split_first() {
        bytes = rest;
        let mut value = *byte;
        let escaped = match class(value) {
            Class::Semicolon => return,
            Class::Foreign => true,
            Class::Percent => {
                if let Some((decoded, rest)) = escape(rest) {
                    (value, bytes) = (decoded, rest);
                }
                stays_escaped(value)
            }
            _ => false,
        };
        if escaped {
            // Writing to a string does not fail.
            let _ = write!(out, "%{value:02X}");
        } else {
            out.push(char::from(value));
        }
    }
}

/// A set of paths, as a policy writes it.
///
/// | pattern | matches | but not |
/// |---|---|---|
/// | `/v1/charges` | `/v1/charges` | `/v1/charges/7` |
/// | `/v1/{id}/refund`, `/v1/*/refund` | `/v1/7/refund` | `/v1/refund`, `/v1/7/8/refund` |
/// | `/v1/ch*` | `/v1/charges`, `/v1/ch` | `/v1/ch/7` |
/// | `/v1/*` | `/v1/a`, `/v1/a/b` | `/v1` |
/// | `*`, `/*` | every path | |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    text: Box<str>,
    parts: Vec<Part>,
    /// Whether it goes on below its parts.
    open: bool,
    any_case: bool,
    /// The whole path, or what it begins with, where the pattern says no more than that.
    plain: Option<Box<str>>,
}

/// What one segment of a path has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<str>),
    Prefix(Box<str>),
    Any,
}

impl PathPattern {
    /// Reads a pattern. Its literals may be written in any form that [`normal`] knows. The error says what would be
    /// right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/').or((text == "*").then_some(text)) else {
            return Err(format!("the pattern `{text}` must begin with a slash: write `/{text}`"));
        };
        if let Some((path, _)) = path.split_once('?') {
            return Err(format!("patterns match paths, which end before the `?`: write `/{path}`"));
        }
        if path.contains(';') {
            return Err(format!(
                "paths are matched without parameters such as `;v=1`: leave them out of `{text}`"
            ));
        }
        let mut parts = Vec::new();
        let mut open = false;
        let mut segments = path.trim_end_matches('/').split('/').peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            match segment {
                "*" if last => open = true,
                "*" => parts.push(Part::Any),
                _ if segment.contains("**") => {
                    let right = text.replace("**", "*");
                    return Err(format!(
                        "`**` is written `*`, which at the end is all that is below: `{right}`"
                    ));
                }
                _ if segment.contains(['{', '}']) => parts.push(named(segment)?),
                _ => match literal(segment)? {
                    Part::Literal(text) if matches!(&*text, "" | ".") => {}
                    Part::Literal(text) if &*text == ".." => drop(parts.pop()),
                    part => parts.push(part),
                },
            }
        }
        let mut plain = Some(String::new());
        for part in &parts {
            plain = match (plain, part) {
                (Some(plain), Part::Literal(literal)) => Some(format!("{plain}/{literal}")),
                _ => None,
            };
        }
        let plain = plain.filter(|_| !parts.is_empty());
        let plain = plain.map(|plain| if open { format!("{plain}/") } else { plain }.into_boxed_str());
        Ok(Self { text: text.into(), parts, open, any_case: false, plain })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The pattern without the names of what it leaves open: under other names it is the same.
    pub(crate) fn shape(&self) -> String {
        let mut shape = String::with_capacity(self.text.len());
        let mut is_name = false;
        for c in self.text.chars() {
            is_name &= c != '}';
            if !is_name {
                shape.push(c);
            }
            is_name |= c == '{';
        }
        shape
    }

    /// The same pattern for a server to which `/A` and `/a` are the same. Letters outside ASCII keep their case.
    pub fn ignoring_case(mut self) -> Self {
        self.any_case = true;
        self
    }

    /// Whether a path in other upper and lower case letters does not match.
    #[cfg(feature = "policy")]
    pub(crate) fn depends_on_case(&self) -> bool {
        let has_letters = |part: &Part| part.text().bytes().any(|byte| byte.is_ascii_alphabetic());
        !self.any_case && self.parts.iter().any(has_letters)
    }

    /// Whether every path is one of these.
    pub(crate) fn is_all(&self) -> bool {
        self.open && self.parts.is_empty()
    }

    /// Whether a path is one of these. It has to be in [`normal`] form.
    pub fn matches(&self, normal_path: &str) -> bool {
        if let Some(plain) = &self.plain {
            let path = normal_path.as_bytes();
            let end = if self.open { plain.len() } else { path.len() };
            return path.get(..end).is_some_and(|path| self.same(plain, path));
        }
        let mut rest = if normal_path == "/" { &[][..] } else { normal_path.as_bytes() };
        for part in &self.parts {
            let Some(path) = rest.strip_prefix(b"/") else {
                return false;
            };
            let Some((begin, more)) = path.split_at_checked(part.text().len()) else {
                return false;
            };
            if !self.same(part.text(), begin) {
                return false;
            }
            let end = more.iter().position(|byte| *byte == b'/').unwrap_or(more.len());
            if end > 0 && matches!(part, Part::Literal(_)) {
                return false;
            }
            rest = more.get(end..).unwrap_or_default();
        }
        if self.open { self.is_all() || !rest.is_empty() } else { rest.is_empty() }
    }

    /// Whether every path that the other matches is matched by this one too. If this is so and this one is tried
    /// first, the other is never reached.
    pub fn covers(&self, other: &Self) -> bool {
        if self.is_all() {
            return true;
        }
        let (mine, theirs) = (self.parts.len(), other.parts.len());
        let deep = match (self.open, other.open) {
            (false, open) => !open && mine == theirs,
            (true, open) => mine < theirs + usize::from(open),
        };
        deep && self
            .parts
            .iter()
            .zip(&other.parts)
            .all(|(mine, theirs)| self.part_covers(mine, theirs, other))
    }

    /// Whether a path may be one of both.
    #[cfg(feature = "policy")]
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let reaches = |open: &Self, other: &Self| {
            open.parts.is_empty() || open.parts.len() < other.parts.len() + usize::from(other.open)
        };
        let deep = match (self.open, other.open) {
            (false, false) => self.parts.len() == other.parts.len(),
            (true, false) => reaches(self, other),
            (false, true) => reaches(other, self),
            (true, true) => true,
        };
        let any_case = self.any_case || other.any_case;
        let same = |a: &str, b: &str| if any_case { a.eq_ignore_ascii_case(b) } else { a == b };
        let begins = |text: &str, begin: &str| text.get(..begin.len()).is_some_and(|text| same(text, begin));
        deep && self.parts.iter().zip(&other.parts).all(|(mine, theirs)| match (mine, theirs) {
            (Part::Any, _) | (_, Part::Any) => true,
            (Part::Literal(a), Part::Literal(b)) => same(a, b),
            (Part::Literal(text), Part::Prefix(begin)) | (Part::Prefix(begin), Part::Literal(text)) => {
                begins(text, begin)
            }
            (Part::Prefix(a), Part::Prefix(b)) => begins(a, b) || begins(b, a),
        })
    }

    fn part_covers(&self, mine: &Part, theirs: &Part, other: &Self) -> bool {
        let text = mine.text();
        if other.any_case && !self.any_case && text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
            return false;
        }
        match (mine, theirs) {
            (Part::Any, _) => true,
            (Part::Literal(_), Part::Literal(their)) => self.same(text, their.as_bytes()),
            (Part::Prefix(_), Part::Literal(their) | Part::Prefix(their)) => {
                their.as_bytes().get(..text.len()).is_some_and(|begin| self.same(text, begin))
            }
            (Part::Literal(_), _) | (Part::Prefix(_), Part::Any) => false,
        }
    }

    fn same(&self, text: &str, path: &[u8]) -> bool {
        text.as_bytes() == path || (self.any_case && text.as_bytes().eq_ignore_ascii_case(path))
    }
}

impl Part {
    fn text(&self) -> &str {
        match self {
            Self::Literal(text) | Self::Prefix(text) => text,
            Self::Any => "",
        }
    }
}

fn named(segment: &str) -> Result<Part, String> {
    if segment.matches('{').count() != segment.matches('}').count() {
        return Err(format!("the braces of `{segment}` do not match: write `{{id}}`"));
    }
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)) {
        return Err(format!("`{segment}`: braces hold a name and fill their segment: write `{{id}}`"));
    }
    Ok(Part::Any)
}

fn literal(segment: &str) -> Result<Part, String> {
    let (text, prefix) = segment.strip_suffix('*').map_or((segment, false), |text| (text, true));
    if text.contains('*') {
        return Err(format!("`{segment}`: `*` stands at the end of a segment only, as in `a*`"));
    }
    let mut out = String::new();
    write_segment(&mut out, text);
    Ok(if prefix { Part::Prefix(out.into()) } else { Part::Literal(out.into()) })
}
