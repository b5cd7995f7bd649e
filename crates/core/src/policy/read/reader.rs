//! Reads values out of a tree, and takes note of all that is wrong on the way.

use std::sync::Arc;

use hashbrown::HashMap;

use super::super::document::{Key, Node, Value};
use super::super::fields::{self, Field};
use super::super::mistakes::{Mistakes, Place, Severity, nearest};
use super::Surroundings;
use crate::limit::Limit;

pub(super) struct Reader<'s> {
    pub(super) mistakes: Mistakes,
    pub(super) surroundings: &'s dyn Surroundings,
    /// Whether paths match regardless of case where a condition has no `path_case`.
    pub(super) ignores_path_case: bool,
    /// Limits that the file states in other words than their numbers.
    pub(super) stated: HashMap<Limit, Arc<str>>,
}

/// The fields of a map that are known and not blank.
pub(super) struct Fields<'n> {
    entries: Vec<(&'n Key, &'n Node)>,
}

impl<'n> Fields<'n> {
    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, node)| *node)
    }

    /// Where the name of a field stands.
    pub(super) fn place_of(&self, name: &str) -> Option<Place> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(key, _)| key.place)
    }

    /// Names that are there, of these.
    pub(super) fn present<'w>(&self, names: &'w [&'w str]) -> Vec<&'w str> {
        names.iter().copied().filter(|name| self.get(name).is_some()).collect()
    }
}

impl<'s> Reader<'s> {
    pub(super) fn new(text: &str, surroundings: &'s dyn Surroundings) -> Self {
        let mistakes = Mistakes::new(text);
        Self { mistakes, surroundings, ignores_path_case: false, stated: HashMap::new() }
    }
}

impl Reader<'_> {
    pub(super) fn error(&mut self, place: Place, message: impl Into<String>) {
        self.mistakes.add(Severity::Error, place, message.into(), None);
    }

    pub(super) fn error_with(&mut self, place: Place, message: impl Into<String>, help: impl Into<String>) {
        self.mistakes.add(Severity::Error, place, message.into(), Some(help.into()));
    }

    pub(super) fn warn(&mut self, place: Place, message: impl Into<String>, help: impl Into<String>) {
        self.mistakes.add(Severity::Warning, place, message.into(), Some(help.into()));
    }

    /// A name that is none of those that are known.
    pub(super) fn unknown<'w>(
        &mut self,
        place: Place,
        what: &str,
        name: &str,
        known: impl IntoIterator<Item = &'w str> + Clone,
    ) {
        if self.mistakes.is_full() {
            return self.error(place, "");
        }
        let message = format!("there is no {what} {name:?}");
        let all: Vec<&str> = known.clone().into_iter().collect();
        let help = match nearest(name, known) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if all.is_empty() => format!("no {what} is defined"),
            None if all.len() <= 20 => format!("there are {}", spelled_out(&all)),
            None => format!("there are {} others", all.len()),
        };
        self.error_with(place, message, help);
    }

    /// The fields of a map. What is unknown, twice there or blank is noted.
    pub(super) fn fields<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        known: &'static [Field],
    ) -> Option<Fields<'n>> {
        let entries = self.entries(node, what)?;
        let mut fields = Vec::new();
        for (key, value) in entries {
            if !known.iter().any(|field| field.name == key.name) {
                self.unknown(key.place, "field", &key.name, fields::names(known));
            } else if matches!(value.value, Value::Null) {
                self.error_with(
                    key.place,
                    format!("`{}` is blank", key.name),
                    "say something, or leave it out",
                );
            } else {
                fields.push((key, value));
            }
        }
        Some(Fields { entries: fields })
    }

    /// The entries of a map whose names are the user's own. Names that are blank or twice there are noted.
    pub(super) fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<Vec<(&'n Key, &'n Node)>> {
        let Value::Map(entries) = &node.value else {
            self.error_with(node.place, format!("{what} is a map of names and values"), is_here(node));
            return None;
        };
        let mut seen = hashbrown::HashSet::new();
        let mut kept = Vec::new();
        for (key, value) in entries {
            if key.name.trim().is_empty() {
                self.error(key.place, "a name is blank");
            } else if key.name == "<<" {
                self.error(key.place, "maps cannot be merged here: write the fields out");
            } else if !seen.insert(key.name.as_str()) {
                self.error(key.place, format!("{:?} is there twice", key.name));
            } else {
                kept.push((key, value));
            }
        }
        Some(kept)
    }

    pub(super) fn list<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Node] {
        match &node.value {
            Value::List(list) => list,
            _ => {
                self.error_with(node.place, format!("{what} is a list: [a, b]"), is_here(node));
                &[]
            }
        }
    }

    /// What goes through all of a list for each of its entries is kept to so many: nobody means more.
    pub(super) fn at_most<'n>(&mut self, nodes: &'n [Node], most: usize, what: &str) -> &'n [Node] {
        if let Some(node) = nodes.get(most) {
            self.error(node.place, format!("there are more than {most} {what}"));
        }
        nodes.get(..most).unwrap_or(nodes)
    }

    /// One, or all of a list.
    pub(super) fn some<'n>(&mut self, node: &'n Node) -> &'n [Node] {
        match &node.value {
            Value::List(list) => {
                if list.is_empty() {
                    self.error_with(node.place, "this list is empty", "say something, or leave it out");
                }
                list
            }
            _ => std::slice::from_ref(node),
        }
    }

    pub(super) fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) if !text.trim().is_empty() => Some(text),
            Value::Text(_) | Value::Null => {
                self.error(node.place, format!("{what} is blank"));
                None
            }
            _ => {
                self.error_with(node.place, format!("{what} is a single value"), is_here(node));
                None
            }
        }
    }

    /// A quantity.
    pub(super) fn parsed<T>(
        &mut self,
        node: &Node,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(node, what)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(problem) => {
                // A field is named: the message may be read without the line that it points to.
                let problem = if what.starts_with('`') { format!("{what}: {problem}") } else { problem };
                self.error(node.place, problem);
                None
            }
        }
    }

    /// One of some words.
    pub(super) fn word<'w>(&mut self, node: &Node, what: &str, words: &[&'w str]) -> Option<&'w str> {
        let text = self.text(node, what)?;
        let word = words.iter().find(|word| **word == text.trim());
        if word.is_none() {
            self.unknown(node.place, what, text, words.iter().copied());
        }
        word.copied()
    }

    /// A name that is one of the user's own.
    pub(super) fn named(&mut self, node: &Node, what: &str, names: &[&str]) -> Option<usize> {
        let text = self.text(node, what)?;
        let at = names.iter().position(|name| *name == text);
        if at.is_none() {
            self.unknown(node.place, what, text, names.iter().copied());
        }
        at
    }
}

fn is_here(node: &Node) -> &'static str {
    match node.value {
        Value::Null => "nothing is here",
        Value::Text(_) => "this is a single value",
        Value::List(_) => "this is a list",
        Value::Map(_) => "this is a map",
    }
}

/// `a, b and c`
pub(super) fn spelled_out(words: &[&str]) -> String {
    match words {
        [] => "none".to_owned(),
        [one] => format!("`{one}`"),
        [some @ .., last] => {
            let some: Vec<_> = some.iter().map(|word| format!("`{word}`")).collect();
            format!("{} and `{last}`", some.join(", "))
        }
    }
}
