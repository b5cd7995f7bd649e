//! limitador with its in-memory storage: one limit, qualified by one variable. It counts per fixed window.
//!
//! Its interface wants a context built from a map of owned strings for each decision, so that is part of the cost.

use std::collections::HashMap;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit as Rule, Namespace};

use super::{Contender, Entry, Limit, Role};
use crate::keys::{Text, as_str};
use crate::measure::serve;

const WINDOW_SECONDS: u64 = 3600;

struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Contender<Text> for Limitador {
    fn new(keys: usize, limit: Limit) -> Self {
        // Room for twice the keys, so that its cache evicts none.
        let limiter = RateLimiter::new(2 * keys as u64);
        limiter.add_limit(Rule::new(
            "bench",
            limit.burst().into(),
            WINDOW_SECONDS,
            vec![],
            vec!["user".try_into().expect("an expression")],
        ));
        Self { limiter, namespace: "bench".into() }
    }

    #[inline(always)]
    fn decide(&self, key: &Text) -> bool {
        let values = HashMap::from([("user".to_owned(), as_str(key).to_owned())]);
        let result = self
            .limiter
            .check_rate_limited_and_update(&self.namespace, &Context::from(values), 1)
            .expect("a decision");
        !result.limited
    }
}

pub fn entry() -> Entry {
    Entry {
        name: "limitador, in memory",
        role: Role::Peer,
        slow: true,
        text: Some(serve::<Text, Limitador>),
        number: None,
    }
}
