//! A cluster, and slots that move within it.

use std::process::Command;

use crate::redis::wait_until;
use crate::{Flavour, Proxy, RedisServer};

/// Three primaries, each with a replica.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
}

impl Cluster {
    /// A cluster that serves all slots, and whose replicas have caught up.
    pub fn start(flavour: Flavour) -> Self {
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-require-full-coverage",
            "no",
        ];
        let nodes: Vec<_> = (0..6).map(|_| RedisServer::start_with(flavour, &arguments)).collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli; `make setup` installs it");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let cluster = Self { nodes };
        wait_until("the cluster is whole", || cluster.is_whole());
        cluster
    }

    fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let info = node.command(&["CLUSTER", "INFO"]);
            let replication = node.command(&["INFO", "replication"]);
            // A replica that has the data is sent what comes after it only when its primary knows so.
            info.contains("cluster_state:ok")
                && (replication.contains("state=online") || replication.contains("master_link_status:up"))
        })
    }

    /// The address of all nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }

    /// Puts a proxy in front of each node. From now on clients of the cluster are sent there.
    pub fn put_behind_proxies(&self) -> Vec<Proxy> {
        let proxies: Vec<_> = self.nodes.iter().map(|node| Proxy::in_front_of(node.port())).collect();
        for (node, proxy) in self.nodes.iter().zip(&proxies) {
            node.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
        }
        let knows_all = |node: &RedisServer| {
            let known = node.command(&["CLUSTER", "NODES"]);
            proxies.iter().all(|proxy| known.contains(&format!("127.0.0.1:{}@", proxy.port())))
        };
        wait_until("all nodes know of the proxies", || self.nodes.iter().all(knows_all));
        proxies
    }

    /// All nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// All nodes, to kill and restart.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// The nodes that are primaries at this moment.
    pub fn primaries_mut(&mut self) -> impl Iterator<Item = &mut RedisServer> {
        self.nodes.iter_mut().filter(|node| node.is_primary())
    }
    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let mut replies =
            self.nodes.iter().filter_map(|node| node.try_command(&["CLUSTER", "KEYSLOT", key]).ok());
        let reply = replies.next().expect("a node that answers");
        let number = reply.strip_prefix(':').expect("a number");
        number.trim_end().parse().expect("a slot")
    }

    /// The place in `nodes` of the primary that serves a slot at this moment.
    pub fn primary_of(&self, slot: u16) -> usize {
        let serves = |node: &RedisServer| {
            node.try_command(&["CLUSTER", "NODES"])
                .is_ok_and(|nodes| nodes.lines().any(|line| is_own(line, slot)))
        };
        self.nodes.iter().position(serves).unwrap_or_else(|| panic!("no primary serves slot {slot}"))
    }

    /// Moves a slot and its keys to another primary, given by its place in `nodes`.
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to).finish();
    }

    /// Begins to move a slot to another primary. Until the move is finished, who asks for a key that the slot's primary
    /// does not hold is sent on with `ASK`, and who asks for some that are on either side is told `TRYAGAIN`.
    pub fn begin_move(&self, slot: u16, to: usize) -> Move<'_> {
        let from = self.primary_of(slot);
        assert_ne!(from, to, "node {to} serves slot {slot} already");
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        to.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &id_of(from)]);
        from.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &id_of(to)]);
        Move { cluster: self, slot, from, to }
    }
}

/// Whether a line of `CLUSTER NODES` is about the primary that was asked, and names the slot as its own.
fn is_own(line: &str, slot: u16) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, _, flags, _, _, _, _, _, slots @ ..] = &words[..] else { return false };
    flags.starts_with("myself,master")
        && slots.iter().any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse().is_ok_and(|first: u16| first <= slot)
                && last.parse().is_ok_and(|last: u16| slot <= last)
        })
}

fn id_of(node: &RedisServer) -> String {
    bulk_strings(&node.command(&["CLUSTER", "MYID"])).remove(0)
}

/// The strings in a reply, which contain no line breaks.
fn bulk_strings(reply: &str) -> Vec<String> {
    let mut lines = reply.split("\r\n");
    let mut strings = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with('$') {
            strings.extend(lines.next().map(str::to_owned));
        }
    }
    strings
}

/// A slot on its way from one primary to another. It stays on its way if this is dropped.
#[derive(Debug)]
#[must_use = "a move is finished with `finish`"]
pub struct Move<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl Move<'_> {
    /// Carries over up to that many keys, and says how many there were.
    pub fn carry(&self, count: usize) -> usize {
        let (slot, count) = (self.slot.to_string(), count.to_string());
        let keys = bulk_strings(&self.from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, &count]));
        if !keys.is_empty() {
            let port = self.to.port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.from.command(&words);
        }
        keys.len()
    }

    /// Carries over the keys that are left, and tells all primaries.
    pub fn finish(self) {
        while self.carry(100) > 0 {}
        let (slot, id) = (self.slot.to_string(), id_of(self.to));
        let primaries = self.cluster.nodes.iter().filter(|node| node.is_primary());
        // The new one first, so that there is always one that serves the slot.
        let others = primaries.filter(|node| node.port() != self.to.port());
        for node in std::iter::once(self.to).chain(others) {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }
}
