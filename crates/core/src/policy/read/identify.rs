//! Who is calling and by which plan, and whose word is taken for it.

use ipnet::{Ipv4Net, Ipv6Net};

use super::super::address::{AddressHeader, ClientAddress, Networks, V6_PREFIX, parse_network};
use super::super::condition::Glob;
use super::super::document::{Node, Value};
use super::super::identify::{Identify, Named, Source};
use super::super::mistakes::nearest;
use super::super::table::PlanTable;
use super::super::{fields, quantity};
use super::reader::{Fields, Reader, spelled_out};
use super::{KNOWN_BY_IP, MOST, OF_NETWORKS};

impl Reader<'_> {
    pub(super) fn identify(&mut self, fields: Option<&Fields<'_>>) -> Identify {
        let tagged = |source: Source| {
            let tag = source.tag();
            (source, tag)
        };
        let mut identify =
            Identify { caller: vec![tagged(Source::Ip)], plan: Vec::new(), v6_prefix: V6_PREFIX };
        let Some(fields) = fields else { return identify };
        if let Some(node) = fields.get("caller") {
            let sources = self.sources(node, &["ip", "tls"]);
            identify.caller = sources.into_iter().map(tagged).collect();
        }
        if let Some(node) = fields.get("plan") {
            identify.plan = self.sources(node, &["tls", "table"]);
        }
        if let Some(node) = fields.get("ipv6_prefix")
            && let Some(prefix) = self.parsed(node, "`ipv6_prefix`", quantity::whole)
        {
            match u8::try_from(prefix) {
                Ok(prefix @ 32..=128) => identify.v6_prefix = prefix,
                _ => self
                    .error(node.place, format!("{prefix} bits do not tell callers apart: from 32 to 128 do")),
            }
        }
        identify
    }

    fn sources(&mut self, node: &Node, words: &[&str]) -> Vec<Source> {
        let mut sources = Vec::new();
        let nodes = self.some(node);
        for node in self.at_most(nodes, 16, "sources") {
            let source = match &node.value {
                Value::Map(_) => {
                    let Some(fields) = self.fields(node, "a source", fields::SOURCES) else { continue };
                    match fields.present(fields::SOURCE_KINDS).as_slice() {
                        [kind] => {
                            let Some(node) = fields.get(kind) else { continue };
                            let source = match *kind {
                                "header" => self.header_name(node).map(Source::Header),
                                "cookie" => self.cookie_name(node).map(Source::Cookie),
                                "query" => self.query_name(node).map(Source::Query),
                                _ => self.text(node, kind).map(|claim| Source::Jwt(claim.to_owned())),
                            };
                            let Some(source) = source else { continue };
                            source
                        }
                        [] => continue,
                        several => {
                            let message = format!("these are several sources: {}", spelled_out(several));
                            self.error_with(
                                node.place,
                                message,
                                "write them one after the other: [header: a, cookie: b]",
                            );
                            continue;
                        }
                    }
                }
                Value::Text(text) if self.is_header_as_source(node, text, words) => continue,
                _ => match self.word(node, "source", words) {
                    Some("ip") => Source::Ip,
                    Some("tls") => Source::TlsClient,
                    Some(_) => Source::Table,
                    None => continue,
                },
            };
            if sources.contains(&source) {
                self.error(node.place, "this source is there twice");
            } else if sources.contains(&Source::Ip) {
                self.behind_ip(node.place);
            }
            sources.push(source);
        }
        sources
    }

    /// Reports `caller: x-api-key`, where the name of a header stands without `header:`.
    fn is_header_as_source(&mut self, node: &Node, text: &str, words: &[&str]) -> bool {
        let text = text.trim();
        let is_kind = fields::SOURCE_KINDS.contains(&text);
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_header = !text.is_empty()
            && text.bytes().all(is_token)
            && !["ip", "tls", "table"].contains(&text)
            && nearest(text, words.iter().copied()).is_none();
        if is_kind || is_header {
            let right = match text {
                "cookie" => "cookie: session".to_owned(),
                "query" => "query: api_key".to_owned(),
                "jwt" => "jwt: sub".to_owned(),
                "header" => "header: x-api-key".to_owned(),
                name => format!("header: {name}"),
            };
            let help = format!("did you mean `{right}`?");
            self.error_with(node.place, format!("there is no source {text:?}"), help);
        }
        is_kind || is_header
    }

    pub(super) fn address(&mut self, top: &Fields<'_>) -> ClientAddress {
        let mut address = ClientAddress::default();
        if let Some(node) = top.get("trusted_proxies") {
            let list = self.list(node, "`trusted_proxies`");
            address.trusted =
                list.iter().filter_map(|node| self.parsed(node, "a network", parse_network)).collect();
        }
        if let Some(node) = top.get("trusted_hops")
            && let Some(hops) = self.parsed(node, "`trusted_hops`", quantity::whole)
        {
            match u8::try_from(hops) {
                Ok(hops @ 1..=32) => {
                    address.hops = Some(hops);
                    // Where nobody knows the addresses of proxies, they are told by their number alone.
                    let proxies = top.get("trusted_proxies").map(|node| &node.value);
                    if proxies.is_none() {
                        address.trusted = [Ipv4Net::default().into(), Ipv6Net::default().into()]
                            .into_iter()
                            .collect::<Networks>();
                    } else if matches!(proxies, Some(Value::List(list)) if list.is_empty()) {
                        self.error_with(
                            node.place,
                            "there are proxies, and `trusted_proxies` is empty",
                            "leave one of them out",
                        );
                    }
                }
                _ => self
                    .error(node.place, format!("{hops} proxies one behind the other? From 1 to 32 can be")),
            }
        }
        if let Some(name) = top.get("address_header").and_then(|node| self.header_name(node)) {
            address.header = match name.as_str() {
                "x-forwarded-for" => AddressHeader::XForwardedFor,
                "forwarded" => AddressHeader::Forwarded,
                other => AddressHeader::Named(other.to_owned()),
            };
        }
        address
    }

    pub(super) fn default_plan(&mut self, fields: Option<&Fields<'_>>, plans: &[&str]) -> Option<usize> {
        match fields.and_then(|fields| fields.get("default_plan")) {
            Some(node) => self.named(node, "plan", plans),
            None => (!plans.is_empty()).then_some(0),
        }
    }

    /// A table that is not asked, and one that is asked and not there.
    pub(super) fn check_table(&mut self, fields: Option<&Fields<'_>>, identify: &Identify) {
        let Some(fields) = fields else { return };
        let asked = identify.plan.contains(&Source::Table);
        match (fields.place_of("table"), fields.place_of("plan")) {
            (Some(place), _) if !asked => {
                self.warn(place, "no plan is looked for in this table", "add `plan: [table]` to `identify`");
            }
            (None, Some(place)) if asked => {
                self.error_with(
                    place,
                    "there is no table",
                    "add `table: { name-of-a-caller: name-of-a-plan }`",
                );
            }
            _ => {}
        }
    }

    pub(super) fn table(&mut self, node: &Node, plans: &[&str], identify: &Identify) -> PlanTable {
        let mut table = PlanTable::default();
        for (key, node) in self.entries(node, "`table`").unwrap_or_default() {
            let Some(plan) = self.named(node, "plan", plans) else { continue };
            if !key.name.contains('*') {
                self.no_network(key.place, &key.name, OF_NETWORKS);
                self.addressed(key.place, &key.name, identify, KNOWN_BY_IP);
                if !table.insert(Named::of(&key.name, identify.v6_prefix), plan) {
                    self.same_caller(key.place);
                }
                continue;
            }
            // Each request may be held against all of them.
            if table.patterns() == MOST {
                self.error(key.place, format!("there are more than {MOST} patterns"));
                break;
            }
            self.pattern_of_addresses(key.place, &key.name, identify);
            table.insert_pattern(Glob::new(&key.name), plan);
        }
        table
    }
}
