//! Who is compared, and in what.

mod ours;
mod quota;
mod scripts;

use std::error::Error;

use tollgate_bench::keys::Text;

use crate::load::Loadable;
use quota::{ADMITS, REFUSES};

pub type Failure = Box<dyn Error + Send + Sync>;

/// Makes decisions by a server.
pub trait Contender: Clone + Send + Sync + 'static {
    /// Whether the subject's request is admitted. It is one decision, of however many limits.
    fn decide(&self, subject: &Text) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// What is asked of contenders that can be compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Question {
    OneLimitAdmits,
    OneLimitRefuses,
    ThreeLimitsAdmit,
}

pub struct Entry {
    pub name: &'static str,
    pub question: Question,
    pub contender: Box<dyn Loadable>,
}

impl Entry {
    fn new(name: &'static str, question: Question, contender: impl Contender) -> Self {
        Self { name, question, contender: Box::new(contender) }
    }
}

pub const OURS: &str = "tollgate";
pub const TWO_KEYS: &str = "two-key token bucket, client's time";
pub const GCRA: &str = "one-key GCRA, server's time";
pub const NO_DECISION: &str = "floor: EVALSHA that decides nothing";
pub const INCR: &str = "floor: INCR";
pub const IN_TURN: &str = "three scripts, one after another";
pub const PIPELINED: &str = "three scripts, one pipeline";

/// Each has a connection of its own.
pub async fn all(url: &str) -> Result<Vec<Entry>, Failure> {
    use Question::{OneLimitAdmits, OneLimitRefuses, ThreeLimitsAdmit};
    let entries = vec![
        Entry::new(OURS, OneLimitAdmits, ours::OneLimit::new(url, ADMITS).await?),
        Entry::new(TWO_KEYS, OneLimitAdmits, scripts::TwoKeys::new(url, ADMITS).await?),
        Entry::new(GCRA, OneLimitAdmits, scripts::OneKey::gcra(url, ADMITS).await?),
        Entry::new(NO_DECISION, OneLimitAdmits, scripts::OneKey::no_decision(url, ADMITS).await?),
        Entry::new(INCR, OneLimitAdmits, scripts::Incr::new(url).await?),
        Entry::new(OURS, OneLimitRefuses, ours::OneLimit::new(url, REFUSES).await?),
        Entry::new(TWO_KEYS, OneLimitRefuses, scripts::TwoKeys::new(url, REFUSES).await?),
        Entry::new(GCRA, OneLimitRefuses, scripts::OneKey::gcra(url, REFUSES).await?),
        Entry::new(OURS, ThreeLimitsAdmit, ours::ThreeLimits::new(url).await?),
        Entry::new(IN_TURN, ThreeLimitsAdmit, scripts::InTurn(scripts::ThreeLimits::new(url).await?)),
        Entry::new(PIPELINED, ThreeLimitsAdmit, scripts::Pipelined(scripts::ThreeLimits::new(url).await?)),
    ];
    Ok(entries)
}
