//! Where states are kept.

use super::super::document::{Node, Value};
use super::super::mistakes::Place;
use super::super::{StoreChoice, fields, quantity};
use super::reader::Reader;

impl Reader<'_> {
    pub(super) fn store(&mut self, node: &Node) -> StoreChoice {
        if !matches!(node.value, Value::Map(_)) {
            return StoreChoice { url: self.store_address(node, "`store`"), ..StoreChoice::default() };
        }
        let Some(fields) = self.fields(node, "`store`", fields::STORE) else { return StoreChoice::default() };
        let url = fields.get("url").and_then(|node| self.store_address(node, "`url`"));
        let mut text = |name: &str| self.text(fields.get(name)?, &format!("`{name}`")).map(str::to_owned);
        let (secret, prefix) = (text("secret"), text("prefix"));
        if let Some(node) = fields.get("secret") {
            self.mistakes.hide(node.place);
        }
        let deadline =
            fields.get("deadline").and_then(|node| self.parsed(node, "`deadline`", quantity::deadline));
        let expected_nodes = fields
            .get("expected_nodes")
            .and_then(|node| self.parsed(node, "`expected_nodes`", quantity::some));
        let max_bytes =
            fields.get("max_bytes").and_then(|node| self.parsed(node, "`max_bytes`", quantity::bytes));
        StoreChoice { url, secret, prefix, deadline, expected_nodes, max_bytes }
    }

    /// The address of a shared store. What in it may be a password is not shown.
    fn store_address(&mut self, node: &Node, what: &str) -> Option<String> {
        let text = self.text(node, what)?.trim();
        let written = self.mistakes.text_at(node.place);
        let login = written.find("://").zip(written.rfind('@')).map(|(from, to)| (from + 3, to));
        let pass = written.find("pass=").map(|from| {
            let rest = written.get(from + 5..).unwrap_or_default();
            (from + 5, from + 5 + rest.find(['&', '"', '\'']).unwrap_or(rest.len()))
        });
        for (from, to) in login.into_iter().chain(pass) {
            self.mistakes.hide(Place { start: node.place.start + from, end: node.place.start + to });
        }
        if text == "memory" {
            return None;
        }
        if let Err(problem) = self.surroundings.store(text) {
            self.error(node.place, problem);
        }
        Some(text.to_owned())
    }
}
