//! A limit that processes share. Start it twice, and stop and start the server meanwhile:
//! `cargo run --release -p tollgate-redis --example shared -- redis://127.0.0.1:6379`
#![allow(clippy::print_stdout, reason = "it shows something")]

use std::error::Error;
use std::time::Duration;

use tollgate::core::store::Charge;
use tollgate::{Failsafe, Limit, Nanos, Store};
use tollgate_redis::RedisStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let redis = RedisStore::builder(address).secret("an example's is no secret").build()?;
    let store = Failsafe::new(redis);
    let rule = store.define("per user", Limit::token_bucket(20, 10, Nanos::from_secs(1))?)?;
    let charge = Charge { rule, key: "alice".into(), ask: 1.into() };
    for second in 1.. {
        let (mut passed, mut alone) = (0, 0);
        for _ in 0..20 {
            let verdict = store.charge(&[charge], None).await?;
            passed += u32::from(verdict.allowed);
            alone += u32::from(!verdict.degraded.is_empty());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let health = store.shared().health();
        println!(
            "{second:>3} s: {passed:>2} of 20 passed, {alone:>2} decided without the store, {} nodes",
            health.nodes
        );
        health.problem.iter().chain(&health.warnings).for_each(|line| println!("       {line}"));
    }
    Ok(())
}
