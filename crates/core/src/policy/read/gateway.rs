//! The gateway: where it listens, whom it passes requests on to, and how long it waits for what.

use std::sync::Arc;

use super::super::document::{Node, Value};
use super::super::gateway::{
    AddedHeaders, ConnectionLimits, Gateway, GatewayTls, Health, Protocol, Server, Sizes, Timeouts, Upstream,
    address_in_url, parse_address, parse_server,
};
use super::super::mistakes::Place;
use super::super::{Kind, fields, quantity};
use super::conditions::Names;
use super::limiters::Drafted;
use super::reader::{Fields, Reader};
use crate::time::Nanos;

/// The name of servers that take what nobody else does.
const DEFAULT: &str = "default";

impl Reader<'_> {
    pub(super) fn gateway(&mut self, node: &Node) -> Gateway {
        let mut gateway = Gateway::default();
        let Some(fields) = self.fields(node, "`gateway`", fields::GATEWAY) else { return gateway };
        gateway.listen = fields.get("listen").and_then(|node| self.listen(node));
        gateway.tls = fields.get("tls").and_then(|node| self.gateway_tls(node));
        gateway.proxy_protocol = self.yes(&fields, "proxy_protocol");
        gateway.encoded_slashes = self.yes(&fields, "encoded_slashes");
        gateway.allow_trace = self.yes(&fields, "allow_trace");
        gateway.added_headers = self.added_headers(&fields);
        gateway.connections =
            self.connection_limits(&fields, ["max_upstream_connections", "max_upstream_queue"]);
        gateway.timeouts = self.timeouts(&fields);
        gateway.sizes = self.sizes(&fields);
        let log = fields.get("access_log").and_then(|node| self.text(node, "`access_log`"));
        gateway.access_log = log.map(str::trim).filter(|log| *log != "off").map(str::to_owned);
        let what = fields.get("log").and_then(|node| self.word(node, "`log`", fields::LOGGED));
        gateway.log_only_refused = what == Some("refused");
        let addresses = fields.get("log_addresses");
        let addresses =
            addresses.and_then(|node| self.word(node, "`log_addresses`", fields::LOGGED_ADDRESSES));
        gateway.log_full_addresses = addresses == Some("full");
        gateway.upstreams = self.upstreams(&fields);
        gateway
    }

    /// Utilization of upstreams is measured by their workers.
    pub(super) fn check_watched(&mut self, drafts: &[Drafted], gateway: &Gateway) {
        let watches = |draft: &&Drafted| matches!(&draft.limiter.kind, Kind::Worker(worker) if worker.watches_upstreams);
        let is_known = gateway.upstreams.iter().any(|upstream| upstream.workers.is_some());
        if let Some(draft) = drafts.iter().find(watches).filter(|_| !is_known) {
            self.error_with(
                draft.place,
                "how busy the upstreams are cannot be told: of none it is known how much it can do at once",
                "add `workers: 50` to an entry of `upstreams`",
            );
        }
    }

    /// Where a door listens.
    pub(super) fn listen(&mut self, node: &Node) -> Option<String> {
        let text = self.text(node, "`listen`")?.trim();
        if text != "off" && parse_address(text).is_none() {
            let help = match (text.parse::<u16>(), address_in_url(text)) {
                (Ok(port), _) => format!("write 127.0.0.1:{port}, or 0.0.0.0:{port} for all of the network"),
                (_, Some(address)) => format!("it is a URL; write {address}"),
                _ => "write 127.0.0.1:8080, or `off`".to_owned(),
            };
            self.error_with(node.place, format!("{text:?} is no address to listen at"), help);
            return None;
        }
        Some(text.to_owned())
    }

    fn yes(&mut self, fields: &Fields<'_>, name: &str) -> bool {
        let word = fields.get(name).and_then(|node| self.word(node, "answer", fields::YES_OR_NO));
        matches!(word, Some("yes" | "true" | "on"))
    }

    fn added_headers(&mut self, fields: &Fields<'_>) -> AddedHeaders {
        let mut added = AddedHeaders::default();
        let nodes = fields.get("add_headers").map(|node| self.some(node)).unwrap_or_default();
        for node in nodes {
            match self.word(node, "header that can be added", fields::ADDED_HEADERS) {
                Some("x-real-ip") => added.real_ip = true,
                Some("via") => added.via = true,
                _ => {}
            }
        }
        added
    }

    /// Reads the most connections and the longest queue from fields of these names.
    fn connection_limits(
        &mut self,
        fields: &Fields<'_>,
        [connections, queue]: [&str; 2],
    ) -> ConnectionLimits {
        let max_connections = fields.get(connections).and_then(|node| {
            let count = self.parsed(node, &format!("`{connections}`"), quantity::some)?;
            if count > fields::MAX_CONNECTIONS {
                let most = fields::MAX_CONNECTIONS;
                self.error(node.place, format!("`{connections}` is {count}, and {most} is the most"));
                return None;
            }
            Some(count)
        });
        let max_queue =
            fields.get(queue).and_then(|node| self.parsed(node, &format!("`{queue}`"), quantity::whole));
        ConnectionLimits { max_connections, max_queue }
    }

    fn gateway_tls(&mut self, node: &Node) -> Option<GatewayTls> {
        let fields = self.fields(node, "`tls`", fields::GATEWAY_TLS)?;
        let mut file = |name: &str| self.file(&fields, name);
        let (certificate, key, client_ca) = (file("certificate"), file("key"), file("client_ca"));
        match (certificate, key) {
            (Some(certificate), Some(key)) => Some(GatewayTls { certificate, key, client_ca }),
            _ => {
                let missing = if fields.get("key").is_some() { "certificate" } else { "key" };
                self.error_with(
                    node.place,
                    format!("`{missing}` is missing"),
                    "TLS needs `certificate` and `key`",
                );
                None
            }
        }
    }

    /// A file that has to be there.
    fn file(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let node = fields.get(name)?;
        let path = self.text(node, &format!("`{name}`"))?.trim().to_owned();
        if let Err(problem) = self.surroundings.file(&path) {
            self.error(node.place, problem);
        }
        Some(path)
    }

    fn timeouts(&mut self, gateway: &Fields<'_>) -> Timeouts {
        let mut timeouts = Timeouts::default();
        if let Some(time) =
            gateway.get("timeout").and_then(|node| self.parsed(node, "`timeout`", quantity::some_time))
        {
            timeouts.answer = time;
        }
        let Some(fields) =
            gateway.get("timeouts").and_then(|node| self.fields(node, "`timeouts`", fields::TIMEOUTS))
        else {
            return timeouts;
        };
        if let (Some(_), Some(place)) = (gateway.get("timeout"), fields.place_of("answer")) {
            self.error(place, "`timeout` says how long to wait for an answer already");
        }
        let mut time = |name: &str, into: &mut Nanos| {
            let parse = |text: &str| match (name, quantity::duration(text)?) {
                ("drain" | "notice", time) => Ok(time),
                (_, time) if time.as_u64() > 0 => Ok(time),
                _ => Err("nothing can be done in no time at all".to_owned()),
            };
            let read = fields.get(name).and_then(|node| self.parsed(node, &format!("`{name}`"), parse));
            *into = read.unwrap_or(*into);
        };
        time("head", &mut timeouts.head);
        time("body", &mut timeouts.body);
        time("connect", &mut timeouts.connect);
        time("queue", &mut timeouts.queue);
        time("answer", &mut timeouts.answer);
        let mut whole = Nanos::ZERO;
        time("whole", &mut whole);
        timeouts.whole = Some(whole).filter(|whole| *whole > Nanos::ZERO);
        time("idle", &mut timeouts.idle);
        time("notice", &mut timeouts.notice);
        time("drain", &mut timeouts.drain);
        timeouts
    }

    fn sizes(&mut self, gateway: &Fields<'_>) -> Sizes {
        let mut sizes = Sizes::default();
        if let Some(node) = gateway.get("max_head")
            && let Some(bytes) = self.parsed(node, "`max_head`", quantity::bytes)
        {
            match bytes {
                8192..=1_048_576 => sizes.head = bytes,
                _ => self
                    .error(node.place, format!("{bytes} bytes are no size of a head: from 8KB to 1MB are")),
            }
        }
        if let Some(node) = gateway.get("min_rate")
            && let Some(bytes) = self.parsed(node, "`min_rate`", quantity::bytes)
        {
            match bytes {
                1..=1_048_576 => sizes.least_rate = bytes,
                _ => {
                    self.error(node.place, format!("{bytes} bytes a second are no least rate: 1 to 1MB are"))
                }
            }
        }
        sizes.body =
            gateway.get("max_body").and_then(|node| self.parsed(node, "`max_body`", quantity::bytes));
        sizes
    }

    fn upstreams(&mut self, gateway: &Fields<'_>) -> Vec<Upstream> {
        let mut upstreams = Vec::new();
        let entries = gateway.get("upstreams").and_then(|node| self.entries(node, "`upstreams`"));
        let mut catches_all: Option<Place> = None;
        for (key, node) in entries.into_iter().flatten() {
            self.check_name(key.place, "an upstream", &key.name);
            let Some(fields) = self.fields(node, "an upstream", fields::UPSTREAM) else { continue };
            let Some(servers) = fields.get("servers") else {
                self.error_with(key.place, "`servers` is missing", "add `servers: [http://127.0.0.1:9000]`");
                continue;
            };
            // Neither classes nor plans: whom a request is for is not for its caller to say.
            let matches = fields.get("match").map(|node| self.conditions(node, Names::default()));
            if catches_all.is_some() {
                let message = format!("no request is ever passed on to {:?}", key.name);
                self.warn(key.place, message, "one before it has no `match`, and so takes everything");
            }
            if matches.is_none() {
                catches_all = Some(key.place);
            }
            let upstream = Upstream {
                name: Arc::from(key.name.as_str()),
                servers: self.servers(servers),
                matches: matches.unwrap_or_default(),
                ..self.manners(&fields)
            };
            if let (Some(place), false) = (fields.place_of("ca"), upstream.servers.iter().any(|it| it.is_tls))
            {
                self.warn(
                    place,
                    "no server here is asked for a certificate",
                    "their addresses begin with http://",
                );
            }
            upstreams.push(upstream);
        }
        if let Some(node) = gateway.get("upstream") {
            if let (Some(_), Some(place)) = (catches_all, gateway.place_of("upstream")) {
                let help = "one of `upstreams` has no `match`, and so takes everything";
                self.warn(place, "no request is ever passed on to this", help);
            }
            if let (true, Some(place)) =
                (upstreams.iter().any(|other| *other.name == *DEFAULT), gateway.place_of("upstream"))
            {
                let help = "call the one of `upstreams` something else, or leave `match` out of it and this one, too";
                self.error_with(
                    place,
                    format!("this is an upstream called {DEFAULT:?}, and there is one"),
                    help,
                );
            }
            upstreams.push(Upstream {
                name: Arc::from(DEFAULT),
                servers: self.servers(node),
                ..Upstream::default()
            });
        }
        upstreams
    }

    fn servers(&mut self, node: &Node) -> Vec<Server> {
        let nodes = self.some(node);
        let nodes = self.at_most(nodes, 256, "servers");
        let mut servers: Vec<Server> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Some(server) = self.parsed(node, "a server", parse_server) else { continue };
            if servers.contains(&server) {
                self.error(node.place, format!("{server} is there twice"));
            } else {
                servers.push(server);
            }
        }
        servers
    }

    fn manners(&mut self, fields: &Fields<'_>) -> Upstream {
        let protocol = fields.get("protocol").and_then(|node| self.word(node, "protocol", fields::PROTOCOLS));
        Upstream {
            protocol: match protocol {
                Some("http1") => Protocol::Http1,
                Some("http2") => Protocol::Http2,
                _ => Protocol::Auto,
            },
            workers: fields.get("workers").and_then(|node| self.parsed(node, "`workers`", quantity::some)),
            health: fields.get("health").and_then(|node| self.health(node)),
            ca: self.file(fields, "ca"),
            connections: self.connection_limits(fields, ["max_connections", "max_queue"]),
            ..Upstream::default()
        }
    }

    fn health(&mut self, node: &Node) -> Option<Health> {
        let mut health =
            Health { path: String::new(), every: Nanos::from_secs(5), timeout: Nanos::from_secs(2) };
        let path = match &node.value {
            Value::Map(_) => {
                let fields = self.fields(node, "`health`", fields::HEALTH)?;
                let mut time = |name: &str, into: &mut Nanos| {
                    let read = fields
                        .get(name)
                        .and_then(|node| self.parsed(node, &format!("`{name}`"), quantity::some_time));
                    *into = read.unwrap_or(*into);
                };
                time("every", &mut health.every);
                time("timeout", &mut health.timeout);
                match fields.get("path") {
                    Some(path) => path,
                    None => {
                        self.error_with(node.place, "`path` is missing", "add `path: /healthz`");
                        return None;
                    }
                }
            }
            _ => node,
        };
        let text = self.text(path, "`path`")?.trim();
        if !text.starts_with('/') || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            self.error_with(path.place, format!("{text:?} is no path"), "write `/healthz`");
            return None;
        }
        health.path = text.to_owned();
        Some(health)
    }
}
