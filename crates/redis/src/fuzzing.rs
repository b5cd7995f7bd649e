//! Fuzz harness for replies of Redis. `fuzz/` runs it with libFuzzer (`make fuzz`), which sets `--cfg fuzzing`. The test below
//! replays the committed inputs.
#![allow(clippy::expect_used, clippy::panic, reason = "a harness panics")]

use redis::Value;

use crate::server::explain;
use crate::wire::Reply;

/// The bytes of a reply on the connection (RESP): any of them becomes outcomes or an error that can be shown.
pub fn reply(data: &[u8]) {
    match redis::parse_redis_value(data) {
        Ok(value) => read(value),
        Err(error) => assert!(!explain(&error).is_empty()),
    }
    // The numbers of the script on their own, so that they are reached often.
    numbers(data);
}

fn read(value: Value) {
    match value.extract_error() {
        Ok(Value::BulkString(bytes)) => numbers(&bytes),
        Ok(_) => {}
        Err(error) => assert!(!explain(&error).is_empty()),
    }
}

/// What the script answers with: a time, and five numbers for each item.
fn numbers(bytes: &[u8]) {
    let Some(reply) = Reply::read(bytes) else {
        assert!(bytes.len() % 40 != 8, "{} bytes are a whole reply, and were rejected", bytes.len());
        return;
    };
    assert_eq!(bytes.len() % 40, 8, "a reply of {} bytes", bytes.len());
    let items = (bytes.len() - 8) / 40;
    assert_eq!(reply.outcomes().count(), items);
    assert_eq!(reply.taken().count(), items);
    assert_eq!(reply.is_allowed(), reply.outcomes().all(|outcome| outcome.allowed));
    let _ = reply.in_progress();
    // However a batch is divided among its callers, each gets its own items, and nobody those of another.
    let whole: Vec<_> = reply.outcomes().collect();
    let first = items / 2;
    let now = reply.now;
    let parts: Vec<_> = reply.split([first, items - first, 1].into_iter()).collect();
    let joined: Vec<_> = parts.iter().flat_map(Reply::outcomes).collect();
    assert_eq!(joined, whole);
    assert!(parts.iter().all(|part| part.now == now));
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_fuzz_inputs_hold_every_property() {
        tollgate_testkit::replay_corpus("redis_reply", super::reply);
    }
}
