//! Single callers: limits of their own, who passes and who does not.

use std::net::Ipv6Addr;

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;

use super::super::address::parse_network;
use super::super::document::{Node, Value};
use super::super::identify::{Identify, Named};
use super::super::mistakes::Place;
use super::super::{List, Override, fields};
use super::limiters::Drafted;
use super::reader::Reader;
use super::{KNOWN_BY_IP, OF_NETWORKS};

impl Reader<'_> {
    pub(super) fn overrides(
        &mut self,
        node: &Node,
        drafts: &mut [Drafted],
        plans: &[&str],
        identify: &Identify,
    ) -> HashMap<Named, Override> {
        let mut overrides = HashMap::new();
        for (caller, node) in self.entries(node, "`overrides`").unwrap_or_default() {
            let mut own = Override::default();
            for (key, node) in
                self.entries(node, &format!("the override of {:?}", caller.name)).unwrap_or_default()
            {
                let at = drafts.iter().position(|draft| *draft.limiter.name == *key.name);
                match (at, key.name.as_str()) {
                    (Some(at), _) => {
                        let Some(draft) = drafts.get_mut(at) else { continue };
                        if let Some(quota) = self.short_quota(node, "an override", draft.kind()) {
                            self.shared_bucket(key.place, draft, &quota, identify);
                            own.choices.extend(self.own_choice(draft, &quota).map(|choice| (at, choice)));
                        }
                    }
                    (None, "plan") => own.plan = self.named(node, "plan", plans),
                    (None, name) => {
                        let limiters = drafts.iter().map(|draft| &*draft.limiter.name);
                        let known: Vec<&str> = limiters.chain(["plan"]).collect();
                        self.unknown(key.place, "limiter", name, known);
                    }
                }
            }
            self.whole_name(caller.place, &caller.name);
            self.no_network(caller.place, &caller.name, OF_NETWORKS);
            self.addressed(caller.place, &caller.name, identify, KNOWN_BY_IP);
            if overrides.insert(Named::of(&caller.name, identify.v6_prefix), own).is_some() {
                self.same_caller(caller.place);
            }
        }
        overrides
    }

    /// A network as the name of a caller.
    pub(super) fn no_network(&mut self, place: Place, name: &str, help: &str) {
        if name.trim().parse::<IpNet>().is_ok() {
            self.error_with(place, format!("{name:?} is a network, and no caller"), help);
        }
    }

    /// Addresses of one network are one caller.
    pub(super) fn same_caller(&mut self, place: Place) {
        self.error_with(place, "this caller is there twice", "addresses of one IPv6 network are one caller");
    }

    /// `allow`, or `block` with what is on `allow`.
    pub(super) fn listed(
        &mut self,
        node: &Node,
        what: &str,
        identify: &Identify,
        allowed: Option<&List>,
    ) -> List {
        let (mut list, mut networks) = (List::default(), Vec::new());
        for node in self.list(node, what) {
            if let Value::Text(text) = &node.value {
                match parse_network(text) {
                    Ok(network) => networks.push((network, node.place)),
                    Err(problem) if text.contains(['.', ':', '/']) => self.error(node.place, problem),
                    Err(_) => {
                        let help = format!("write `caller: {text}`");
                        self.error_with(node.place, format!("{text:?} is no network"), help);
                    }
                }
                continue;
            }
            let Some(fields) = self.fields(node, "an entry", fields::LISTED) else { continue };
            if let Some(node) = fields.get("caller")
                && let Some(caller) = self.text(node, "a caller")
            {
                self.no_network(node.place, caller, &format!("write `network: {caller}`"));
                self.whole_name(node.place, caller);
                self.addressed(node.place, caller, identify, &format!("write `network: {caller}`"));
                let named = Named::of(caller, identify.v6_prefix);
                if allowed.is_some_and(|allowed| allowed.callers.contains(&named)) {
                    self.allowed(node.place, "caller");
                }
                if !list.callers.insert(named) {
                    match caller.parse::<Ipv6Addr>() {
                        Ok(_) => self.same_caller(node.place),
                        Err(_) => self.error(node.place, "this caller is there twice"),
                    }
                }
            }
            if let Some(node) = fields.get("network") {
                let network = self.parsed(node, "a network", parse_network);
                networks.extend(network.map(|network| (network, node.place)));
            }
        }
        let mut seen = HashSet::new();
        for (network, place) in &networks {
            self.listed_all(*place, *network, allowed.is_none());
            if !seen.insert(*network) {
                self.error(*place, "this network is there twice");
            } else if allowed.is_some_and(|allowed| allowed.networks.holds(network)) {
                self.allowed(*place, "network");
            }
        }
        list.networks = networks.into_iter().map(|(network, _)| network).collect();
        list
    }
}
