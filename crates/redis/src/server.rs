//! What kind of server answers, and what its errors mean to the person who has to act.

use redis::{ErrorKind, RedisError};

use crate::address::Connection;

/// Looks at a server that was just connected to: what is to be said of it, or why it will not do.
pub(crate) async fn inspect(connection: &mut Connection) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    let (about, memory) = match (connection.info("server").await, connection.info("memory").await) {
        (Ok(about), Ok(memory)) => (about, memory),
        (Err(error), _) | (_, Err(error)) if error.code() == Some("NOPERM") => {
            warnings.push(
                "its version and memory policy could not be checked: the user may not run INFO (`ACL SETUSER ... +info`)"
                    .to_owned(),
            );
            return Ok(warnings);
        }
        (Err(error), _) | (_, Err(error)) => return Err(explain(&error)),
    };
    for (node, about) in &about {
        let of_node = |text: &str| match node {
            Some(node) => format!("{node}: {text}"),
            None => text.to_owned(),
        };
        match field(about, "redis_mode") {
            Some("cluster") if !connection.is_cluster() => {
                return Err(
                    "this is a node of a cluster: write redis-cluster:// (or rediss-cluster://) in place of \
                            redis://"
                        .to_owned(),
                );
            }
            Some("sentinel") => {
                return Err("this is a sentinel: write redis-sentinel://host:26379/master-name".to_owned());
            }
            _ => {}
        }
        // Valkey tells its own version beside the one of Redis that it stands for.
        if field(about, "valkey_version").is_none()
            && let Some(version) = field(about, "redis_version")
            && is_old(version)
        {
            let problem = format!("Redis {version} is too old: it must be 6.2 or newer, or Valkey");
            return Err(of_node(&problem));
        }
    }
    for (node, memory) in &memory {
        if let Some(policy) = field(memory, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
            let whose = node.as_ref().map_or(String::new(), |node| format!(" of {node}"));
            warnings.push(format!(
                "maxmemory-policy{whose} is {policy}, so a full server forgets limits that are in use, and their callers \
                 get a fresh burst: set it to noeviction"
            ));
        }
    }
    warnings.sort();
    Ok(warnings)
}

fn field<'t>(info: &'t str, name: &str) -> Option<&'t str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn is_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(u32::MAX));
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(0)) < (6, 2)
}

/// What a user must be allowed to do: the script and what it calls; and for databases, sentinels and clusters to connect.
const RIGHTS: &str = "the user may not do this: `ACL SETUSER name ~tg:* +@read +@write +eval +evalsha +time +info +ping \
    +select +role +cluster|slots +asking`, with the prefix of the keys if it is not tg";

/// An error of a server, and what to do about it.
pub(crate) fn explain(error: &RedisError) -> String {
    let text = error.to_string();
    let says = |part: &str| text.contains(part);
    let advice = match error.code() {
        Some("WRONGPASS") => "user or password are wrong: redis://user:password@host",
        Some("NOAUTH") => "it wants a password: redis://:password@host, or redis://user:password@host",
        Some("NOPERM") => RIGHTS,
        // Where the client tells it in words of its own.
        _ if says("no permissions") => RIGHTS,
        Some("OOM") => "its memory is full: raise maxmemory, or let other keys of this server expire",
        Some("BUSY") => "another script keeps it busy: `SCRIPT KILL` ends it",
        Some("READONLY") => "this is a replica: give the address of the primary, or of its sentinels",
        Some("LOADING") => "it is still loading its data",
        Some("MASTERDOWN") => "this replica has lost its primary",
        Some("CLUSTERDOWN") => "the cluster does not serve this slot: `redis-cli --cluster check` says why",
        Some("MOVED" | "ASK" | "CROSSSLOT") => {
            "this is a node of a cluster: write redis-cluster:// in place of redis://"
        }
        Some("MISCONF") => "it cannot save its data and refuses writes: its own log says why",
        _ if says("cluster support disabled") => {
            "this is no cluster: write redis:// in place of redis-cluster://"
        }
        _ if says("unknown command 'CLUSTER'") || says("unknown command 'cluster'") => {
            "this is no cluster: write redis:// for a server, redis-sentinel://host:26379/master-name for a sentinel"
        }
        _ if says("does not point to a sentinel") => {
            "this is no sentinel: write redis:// in place of redis-sentinel://"
        }
        _ if error.kind() == ErrorKind::MasterNameNotFoundBySentinel => {
            "no sentinel knows a master of this name: `SENTINEL MASTERS` tells those that they know"
        }
        _ if says("DB index is out of range") => {
            "it has fewer databases: `CONFIG GET databases` says how many"
        }
        _ if says("UnknownIssuer") || says("BadSignature") => {
            "its certificate is of an authority that is not trusted here: add ?ca=FILE with the right one (PEM)"
        }
        _ if says("CertificateRequired") => {
            "it wants a certificate from its clients: add ?cert=FILE&key=FILE (PEM)"
        }
        _ if error.kind() == ErrorKind::InvalidClientConfig => {
            return error.detail().map_or(text, str::to_owned);
        }
        _ if error.kind() == ErrorKind::ClusterConnectionNotFound => {
            "no node of the cluster serves any slot as far as these hosts know: `redis-cli --cluster check` says why"
        }
        _ if error.kind() == ErrorKind::AuthenticationFailed => {
            "user or password are wrong, or it wants none: redis://user:password@host"
        }
        _ if says("Parse error") => {
            return "it does not speak Redis's protocol: is this the right port?".to_owned();
        }
        _ => return text,
    };
    format!("{text} ({advice})")
}
