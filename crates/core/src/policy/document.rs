//! A file as it was written: YAML as a tree in which everything knows its place.

use granit_parser::{Event, Parser, ScalarStyle, Span};
use hashbrown::HashMap;

use super::mistakes::Place;

/// A value, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Nothing: `~`, `null`, or nothing at all.
    Null,
    /// Text, a number, or a truth value: which it is depends on who reads it.
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) place: Place,
    pub(crate) name: String,
}

/// Bytes of a file. Nobody writes more by hand, and nobody reviews it.
pub(crate) const LARGEST: usize = 4 << 20;
/// Values of a file, with those that aliases stand for.
const MOST: usize = 400_000;
/// Bytes of all texts of a file, with those that aliases stand for.
const LONGEST: usize = 2 * LARGEST;
const DEEPEST: usize = 32;

/// Why a text is no tree.
pub(crate) struct Unreadable {
    pub(crate) place: Place,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl Unreadable {
    fn new(place: Place, message: impl Into<String>) -> Self {
        Self { place, message: message.into(), help: None }
    }
}

/// The tree of a text; none if there is nothing in it.
pub(crate) fn parse(text: &str) -> Result<Option<Node>, Unreadable> {
    if text.len() > LARGEST {
        let message = format!("the file is too large: a policy may have up to {LARGEST} bytes (4 MiB)");
        return Err(Unreadable::new(Place::default(), message));
    }
    let mut builder =
        Builder { text, open: Vec::new(), anchors: HashMap::new(), root: None, nodes: 0, bytes: 0 };
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.take(event, span)?,
            Err(error) => {
                let at = error.marker().byte_offset().unwrap_or(text.len());
                if let Some(unquoted) = unquoted_star(text, at) {
                    return Err(unquoted);
                }
                let message = format!("this is no YAML: {}", error.info());
                return Err(Unreadable::new(Place { start: at, end: at + 1 }, message));
            }
        }
    }
    Ok(builder.root.filter(|root| !matches!(root.value, Value::Null)))
}

/// `*std: standard`, where YAML takes the star for the beginning of an alias.
fn unquoted_star(text: &str, at: usize) -> Option<Unreadable> {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b",]}".contains(byte);
    let bytes = text.as_bytes();
    // The error is at the star, or behind what YAML has read of the name.
    let before = bytes.get(..at.min(bytes.len()))?;
    let begin = before.iter().rposition(|byte| is_end(byte) || b"[{".contains(byte)).map_or(0, |end| end + 1);
    let start = [at, begin].into_iter().find(|start| bytes.get(*start) == Some(&b'*'))?;
    let length = bytes.get(start..)?.iter().position(is_end).unwrap_or(bytes.len() - start);
    let word = text.get(start..start + length)?.trim_end_matches(':');
    let message = format!("`{word}` is read as a YAML alias, and there is no anchor of this name");
    let help = Some(format!("put it in quotes: '{word}'"));
    Some(Unreadable { place: Place { start, end: start + word.len() }, message, help })
}

struct Builder<'t> {
    text: &'t str,
    /// Lists and maps that are not complete yet, with the anchor of each.
    open: Vec<(Open, Place, usize)>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
    nodes: usize,
    bytes: usize,
}

enum Open {
    List(Vec<Node>),
    Map(Vec<(Key, Node)>, Option<Key>),
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Unreadable> {
        let place = self.place(span);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                return Err(Unreadable::new(place, "a policy is one document: `---` begins another"));
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_null =
                    style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if is_null { Value::Null } else { Value::Text(text.into_owned()) };
                self.put(Node { place, value }, anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => self.begin(Open::List(Vec::new()), place, anchor)?,
            Event::MappingStart(_, anchor, _) => self.begin(Open::Map(Vec::new(), None), place, anchor)?,
            Event::SequenceEnd | Event::MappingEnd => {
                let Some((open, began, anchor)) = self.open.pop() else { return Ok(()) };
                let value = match open {
                    Open::List(list) => Value::List(list),
                    Open::Map(entries, _) => Value::Map(entries),
                };
                let end = self
                    .text
                    .get(..place.end.max(began.start))
                    .map_or(place.end, |text| text.trim_end().len());
                self.put(
                    Node { place: Place { start: began.start, end: end.max(began.start) }, value },
                    anchor,
                )?;
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(Unreadable::new(place, "this alias stands within what it stands for"));
                };
                let (nodes, bytes) = size(node);
                (self.nodes, self.bytes) = (self.nodes + nodes, self.bytes + bytes);
                self.check_size(place)?;
                let node = Node { place, ..node.clone() };
                self.put(node, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, open: Open, place: Place, anchor: usize) -> Result<(), Unreadable> {
        if self.open.len() >= DEEPEST {
            let message = format!("nothing in a policy is {DEEPEST} levels deep");
            return Err(Unreadable::new(place, message));
        }
        self.open.push((open, place, anchor));
        Ok(())
    }

    fn put(&mut self, node: Node, anchor: usize) -> Result<(), Unreadable> {
        self.nodes += 1;
        self.check_size(node.place)?;
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some((Open::List(list), ..)) => list.push(node),
            Some((Open::Map(entries, key), ..)) => match key.take() {
                Some(name) => entries.push((name, node)),
                None => {
                    let name = match node.value {
                        Value::Text(name) => name,
                        Value::Null => String::new(),
                        _ => {
                            return Err(Unreadable::new(node.place, "a name is a word, not a list or a map"));
                        }
                    };
                    *key = Some(Key { place: node.place, name });
                }
            },
        }
        Ok(())
    }

    /// An alias is short, and what it stands for may be long.
    fn check_size(&self, place: Place) -> Result<(), Unreadable> {
        let message = if self.nodes > MOST {
            format!("the file has more than {MOST} values, with those that its aliases stand for")
        } else if self.bytes > LONGEST {
            format!("what the aliases of this file stand for has more than {LONGEST} bytes")
        } else {
            return Ok(());
        };
        Err(Unreadable::new(place, message))
    }

    fn place(&self, span: Span) -> Place {
        let at = |marker: granit_parser::Marker| marker.byte_offset().unwrap_or(self.text.len());
        Place { start: at(span.start), end: at(span.end) }
    }
}

/// Values of a tree, and bytes of its texts.
fn size(node: &Node) -> (usize, usize) {
    let add = |(nodes, bytes): (usize, usize), (more, longer): (usize, usize)| (nodes + more, bytes + longer);
    match &node.value {
        Value::Null => (1, 0),
        Value::Text(text) => (1, text.len()),
        Value::List(list) => list.iter().map(size).fold((1, 0), add),
        Value::Map(entries) => {
            entries.iter().map(|(key, node)| add((1, key.name.len()), size(node))).fold((1, 0), add)
        }
    }
}
