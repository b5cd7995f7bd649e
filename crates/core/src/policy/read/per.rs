//! What buckets are told apart by.

use smallvec::{SmallVec, smallvec};

use super::super::document::Value;
use super::super::{Part, fields};
use super::reader::{Fields, Reader};

impl Reader<'_> {
    pub(super) fn per(&mut self, fields: &Fields<'_>, kind: &str) -> SmallVec<[Part; 2]> {
        let Some(node) = fields.get("per") else {
            return if matches!(kind, "fleet" | "workers") { smallvec![] } else { smallvec![Part::Caller] };
        };
        let mut parts = SmallVec::new();
        let list = self.some(node);
        for node in self.at_most(list, 16, "parts of a key") {
            let part = match &node.value {
                Value::Map(_) => {
                    let header = self.fields(node, "what buckets are told apart by", fields::PER_HEADER);
                    header.and_then(|fields| self.header_name(fields.get("header")?)).map(Part::Header)
                }
                _ => match self.word(node, "`per`", fields::PARTS) {
                    Some("caller") => Some(Part::Caller),
                    Some("plan") => Some(Part::Plan),
                    Some("path") => Some(Part::Path),
                    Some("method") => Some(Part::Method),
                    Some("host") => Some(Part::Host),
                    Some("ip") => Some(Part::Ip),
                    Some("class") => Some(Part::Class),
                    Some("global") if list.len() > 1 => {
                        self.error(
                            node.place,
                            "`global` is one bucket for all: nothing else can stand beside it",
                        );
                        None
                    }
                    _ => None,
                },
            };
            if let Some(part) = part {
                if parts.contains(&part) {
                    self.error(node.place, "this is there twice");
                }
                parts.push(part);
            }
        }
        parts.sort();
        parts
    }
}
