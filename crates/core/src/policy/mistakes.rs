//! What is wrong with a policy file, where, and what would be right.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::document::LARGEST;

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
#[derive(Clone, PartialEq, Eq)]
pub struct Mistakes {
    source: Box<Source>,
    list: Vec<Mistake>,
    /// How many there are, also beyond those of the list.
    errors: usize,
    warnings: usize,
    /// How often an error was told, the same one again included.
    told: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct Source {
    file: String,
    text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

/// Mistakes that are shown; further ones are counted.
const SHOWN: usize = 50;
/// Mistakes of one severity that are kept. Who has made more will not read them.
const KEPT: usize = 200;
/// Bytes of the lines around a mistake that are worth showing.
const LONGEST_SNIPPET: usize = 4096;

impl Mistakes {
    pub(crate) fn new(text: &str) -> Self {
        // What is too large is not looked at.
        let text = if text.len() > LARGEST { "" } else { text };
        let lines = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let source = Source { file: String::new(), text: text.to_owned(), lines };
        Self { source: Box::new(source), list: Vec::new(), errors: 0, warnings: 0, told: 0 }
    }

    /// How often an error was told so far: what is found between two of these is known to be wrong.
    pub(crate) fn told(&self) -> usize {
        self.told
    }

    /// Whether further errors are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.errors >= KEPT
    }

    /// Makes a secret unreadable in what is shown. Every character becomes one of the same length, so that all places stay.
    pub(crate) fn hide(&mut self, place: Place) {
        if let Some(secret) = self.source.text.get(place.start..place.end) {
            let hide = |c: char| match c.len_utf8() {
                1 if c == '\n' => c,
                1 => '*',
                2 => '\u{b7}',
                3 => '\u{2022}',
                _ => '\u{1f512}',
            };
            let hidden: String = secret.chars().map(hide).collect();
            self.source.text.replace_range(place.start..place.end, &hidden);
        }
    }

    /// The text at a place.
    pub(crate) fn text_at(&self, place: Place) -> &str {
        self.source.text.get(place.start..place.end).unwrap_or_default()
    }

    pub(crate) fn add(&mut self, severity: Severity, place: Place, message: String, help: Option<String>) {
        self.told += usize::from(severity == Severity::Error);
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        if *count >= KEPT {
            *count += 1;
            return;
        }
        let floor = |at: usize| {
            let mut at = at.min(self.source.text.len());
            while !self.source.text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (start, end) = (floor(place.start), floor(place.end));
        let line = self.source.lines.partition_point(|begin| *begin <= start);
        let begin = line.checked_sub(1).and_then(|line| self.source.lines.get(line)).copied().unwrap_or(0);
        // A mark of the byte order is nothing that an editor counts.
        let before = self.source.text.get(begin..start).unwrap_or_default().trim_start_matches('\u{feff}');
        let column = before.chars().count() + 1;
        let mistake = Mistake { severity, message, help, line, column, span: start..end.max(start) };
        if !self.list.contains(&mistake) {
            *count += 1;
            self.list.push(mistake);
        }
    }

    /// With the name of the file, which is then shown with each mistake.
    #[must_use]
    pub fn in_file(mut self, name: impl Into<String>) -> Self {
        self.source.file = one_line(&name.into());
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

    /// Whether anything makes the file useless.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// How many errors there are. Of very many only the first are kept.
    pub fn error_count(&self) -> usize {
        self.errors
    }

    /// How many warnings there are. Of very many only the first are kept.
    pub fn warning_count(&self) -> usize {
        self.warnings
    }

    /// Whether nothing at all is wrong.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn sort(&mut self) {
        let is_warning = |mistake: &Mistake| mistake.severity == Severity::Warning;
        self.list.sort_by_key(|mistake| (is_warning(mistake), mistake.span.start, mistake.span.end));
    }

    /// The lines on which something stands, and the number of the first.
    fn around(&self, span: &Range<usize>) -> (usize, usize, &str) {
        let first = self.source.lines.partition_point(|begin| *begin <= span.start).saturating_sub(1);
        let mut start = self.source.lines.get(first).copied().unwrap_or(0);
        if self.source.text.get(start..).is_some_and(|text| text.starts_with('\u{feff}')) {
            start += '\u{feff}'.len_utf8();
        }
        let behind = self.source.lines.partition_point(|begin| *begin < span.end.max(span.start + 1));
        let end = self.source.lines.get(behind).copied().unwrap_or(self.source.text.len());
        (first + 1, start, self.source.text.get(start..end).unwrap_or_default())
    }
}

impl fmt::Debug for Mistakes {
    /// Without the text, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mistakes")
            .field("file", &self.source.file)
            .field("list", &self.list)
            .finish_non_exhaustive()
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
            let parted = if index == 0 { "" } else { "\n" };
            let message = one_line(&mistake.message);
            let label = mistake.help.as_deref().map(one_line);
            let (line, start, text) = self.around(&mistake.span);
            if text.len() > LONGEST_SNIPPET {
                let name = if mistake.severity == Severity::Error { "error" } else { "warning" };
                let Mistake { line, column, .. } = mistake;
                let file = if self.source.file.is_empty() { "line" } else { &self.source.file };
                writeln!(f, "{parted}{name}: {message}\n --> {file}:{line}:{column}")?;
                if let Some(label) = label {
                    writeln!(f, "  = {label}")?;
                }
                continue;
            }
            let Range { start: from, end: to } = mistake.span;
            let span = from.saturating_sub(start)..to.saturating_sub(start);
            let mut annotation = AnnotationKind::Primary.span(span);
            if let Some(label) = &label {
                annotation = annotation.label(label.as_str());
            }
            let mut snippet = Snippet::source(text).line_start(line).annotation(annotation);
            if !self.source.file.is_empty() {
                snippet = snippet.path(self.source.file.as_str());
            }
            let group = Group::with_title(level.primary_title(message.as_str())).element(snippet);
            writeln!(f, "{parted}{}", renderer.render(&[group]))?;
        }
        match (self.errors + self.warnings).saturating_sub(self.list.len().min(SHOWN)) {
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
