//! What is wrong with a policy file, where, and what would be right.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// Where something stands in a file: from which byte to which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, and does what is probably not meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// What would be right, if that is known.
    pub help: Option<String>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    span: Range<usize>,
}

/// Everything that is wrong with a file. `Display` shows each with its place in the text.
///
/// ```
/// use tollgate_core::policy::Policy;
///
/// let mistakes = Policy::read("limiters:\n  a: { rat: 5/s }\n").unwrap_err();
/// assert_eq!(mistakes.errors().count(), 1);
/// let first = mistakes.errors().next().unwrap();
/// assert_eq!((first.line, first.column), (2, 8));
/// assert!(mistakes.to_string().contains("did you mean `rate`?"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    text: String,
    file: String,
    list: Vec<Mistake>,
}

/// Mistakes that are shown; further ones are counted.
const SHOWN: usize = 50;

impl Mistakes {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), file: String::new(), list: Vec::new() }
    }

    pub(crate) fn add(&mut self, severity: Severity, place: Place, message: String, help: Option<String>) {
        let floor = |at: usize| {
            let mut at = at.min(self.text.len());
            while !self.text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (start, end) = (floor(place.start), floor(place.end));
        let before = self.text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..).map_or(0, |line| line.chars().count()) + 1;
        let mistake = Mistake { severity, message, help, line, column, span: start..end.max(start) };
        if !self.list.contains(&mistake) {
            self.list.push(mistake);
        }
    }

    /// With the name of the file, which is then shown with each mistake.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>) -> Self {
        self.file = name.into();
        self
    }

    /// What makes the file useless.
    pub fn errors(&self) -> impl Iterator<Item = &Mistake> {
        self.of(Severity::Error)
    }

    /// What should be looked at.
    pub fn warnings(&self) -> impl Iterator<Item = &Mistake> {
        self.of(Severity::Warning)
    }

    fn of(&self, severity: Severity) -> impl Iterator<Item = &Mistake> {
        self.list.iter().filter(move |mistake| mistake.severity == severity)
    }

    /// Whether nothing at all is wrong.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn sort(&mut self) {
        self.list.sort_by_key(|mistake| (mistake.span.start, mistake.span.end));
    }
}

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        for (index, mistake) in self.list.iter().take(SHOWN).enumerate() {
            let level = match mistake.severity {
                Severity::Error => Level::ERROR,
                Severity::Warning => Level::WARNING,
            };
            let label = mistake.help.as_deref().map(one_line);
            let mut annotation = AnnotationKind::Primary.span(mistake.span.clone());
            if let Some(label) = &label {
                annotation = annotation.label(label.as_str());
            }
            let mut snippet = Snippet::source(self.text.as_str()).annotation(annotation);
            if !self.file.is_empty() {
                snippet = snippet.path(self.file.as_str());
            }
            let message = one_line(&mistake.message);
            let group = Group::with_title(level.primary_title(message.as_str())).element(snippet);
            let parted = if index == 0 { "" } else { "\n" };
            writeln!(f, "{parted}{}", renderer.render(&[group]))?;
        }
        match self.list.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "\nand {more} more"),
        }
    }
}

/// What came from a file may hold what a terminal would act on.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The word that was probably meant.
pub(crate) fn nearest<'w>(word: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let plain = |word: &str| word.to_lowercase().replace('_', "-");
    let word = plain(word);
    let mut near: Option<(usize, &str)> = None;
    for known in words {
        // Who stops in the midst of a word means that one.
        let begun = word.len() >= 3 && plain(known).starts_with(&word);
        let far = if begun { 0 } else { distance(&word, &plain(known)) };
        if near.is_none_or(|(nearest, _)| far < nearest) {
            near = Some((far, known));
        }
    }
    near.filter(|(far, _)| *far <= word.chars().take(LONGEST).count().max(3) / 3).map(|(_, known)| known)
}

/// Words of a policy are short; what is longer is nobody's typing mistake.
const LONGEST: usize = 64;

/// Letters that have to be added, removed, changed or swapped to make one word of another.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.chars().take(LONGEST).collect(), b.chars().take(LONGEST).collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX - 1);
            let changed = at(&last, j) + usize::from(x != y);
            let mut best = changed.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(&y) && b.get(j - 1) == Some(&x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_was_meant_is_found_and_none_is_made_up() {
        let words = ["rate", "burst", "algorithm", "concurrency", "on_store_failure"];
        let meant = |word| nearest(word, words);
        assert_eq!(meant("rat"), Some("rate"));
        assert_eq!(meant("raet"), Some("rate"));
        assert_eq!(meant("Burst"), Some("burst"));
        assert_eq!(meant("concurency"), Some("concurrency"));
        assert_eq!(meant("conc"), Some("concurrency"));
        assert_eq!(meant("on-store-failure"), Some("on_store_failure"));
        assert_eq!(meant("banana"), None);
        assert_eq!(meant(&"x".repeat(100_000)), None);
    }
}
