//! How callers are answered.

use std::sync::Arc;

use super::super::document::Node;
use super::super::{fields, quantity};
use super::reader::Reader;
use crate::answer::{AnswerStyle, HeaderStyle};

impl Reader<'_> {
    pub(super) fn answers(&mut self, node: &Node) -> AnswerStyle {
        let mut style = AnswerStyle::default();
        let Some(fields) = self.fields(node, "`answers`", fields::ANSWERS) else { return style };
        let word =
            fields.get("headers").and_then(|node| self.word(node, "style of headers", fields::HEADER_STYLES));
        style.headers = word.and_then(HeaderStyle::parse).unwrap_or_default();
        if let Some(node) = fields.get("docs_url")
            && let Some(url) = self.text(node, "`docs_url`")
        {
            if url.starts_with("https://") || url.starts_with("http://") {
                style.docs_url = Some(Arc::from(url));
            } else {
                self.error_with(
                    node.place,
                    format!("{url:?} is no address of a page"),
                    "it begins with https://",
                );
            }
        }
        if let Some(share) =
            fields.get("retry_jitter").and_then(|node| self.parsed(node, "`retry_jitter`", quantity::percent))
        {
            style.retry_jitter_percent = u8::try_from(share.div_ceil(10_000)).unwrap_or(100);
        }
        style
    }
}
