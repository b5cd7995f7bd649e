//! What requests cost.

use super::super::document::Value;
use super::super::mistakes::nearest;
use super::super::{Cost, fields, quantity};
use super::limiters::Context;
use super::reader::{Fields, Reader, spelled_out};

/// The word for what a door says.
const GIVEN: &str = "given";

impl Reader<'_> {
    pub(super) fn cost(&mut self, limiter: &Fields<'_>, context: &Context<'_>) -> Cost {
        let Some(node) = limiter.get("cost") else { return Cost::Fixed(1) };
        if matches!(&node.value, Value::Text(word) if word.trim() == GIVEN) {
            return Cost::Given;
        }
        let forms = || format!("a cost is a number, `given`, or by one of {}", spelled_out(fields::COSTS));
        if let Value::Text(word) = &node.value
            && !word.trim().is_empty()
            && !word.contains(|c: char| c.is_ascii_digit())
        {
            let help = match nearest(word.trim(), [GIVEN]) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "such as `5`, or { header: x-cost }".to_owned(),
            };
            self.error_with(node.place, forms(), help);
            return Cost::Fixed(1);
        }
        if !matches!(node.value, Value::Map(_)) {
            return Cost::Fixed(self.parsed(node, "a cost", quantity::some).unwrap_or(1));
        }
        let Some(fields) = self.fields(node, "a cost", fields::COST) else { return Cost::Fixed(1) };
        let ways = fields.present(fields::COSTS);
        // What a caller can leave out, and what is not known yet, must cost something: else nobody is ever refused.
        let least = if ways == ["class"] { quantity::whole } else { quantity::some };
        let otherwise =
            fields.get("otherwise").and_then(|node| self.parsed(node, "`otherwise`", least)).unwrap_or(1);
        let header = |reader: &mut Self, name: &str| reader.header_name(fields.get(name)?);
        let cost = match ways.as_slice() {
            ["class"] => {
                let entries = fields.get("class").and_then(|node| self.entries(node, "costs by class"));
                let mut classes = Vec::new();
                for (key, node) in entries.unwrap_or_default() {
                    match context.classes.iter().position(|class| *class == key.name) {
                        Some(class) => {
                            let cost = self.parsed(node, "a cost", quantity::whole);
                            classes.extend(cost.map(|cost| (class, cost)));
                        }
                        None => self.unknown(key.place, "class", &key.name, context.classes.iter().copied()),
                    }
                }
                Some(Cost::ByClass { classes, otherwise })
            }
            ["header"] => {
                let max = fields.get("max").and_then(|node| self.parsed(node, "`max`", quantity::some));
                header(self, "header").map(|name| Cost::Header {
                    name,
                    otherwise,
                    max: max.unwrap_or(u64::MAX),
                })
            }
            ["response_header"] => {
                if limiter.get("rate").is_none() {
                    self.error(
                        node.place,
                        "what is in progress is not settled afterwards: `response_header` goes with `rate`",
                    );
                }
                header(self, "response_header").map(|header| Cost::Settled { header, estimate: otherwise })
            }
            _ => {
                self.error(node.place, forms());
                None
            }
        };
        if let (Some(place), false) = (fields.place_of("max"), ways == ["header"]) {
            self.error(place, "`max` goes with `header`");
        }
        cost.unwrap_or(Cost::Fixed(1))
    }
}
