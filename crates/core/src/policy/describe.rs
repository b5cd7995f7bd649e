//! Limits in words, the way a policy states them: `50/s, burst 100`.

use std::sync::Arc;

use super::Policy;
use super::quantity::{Rate, spelled};
use crate::bucket::Bucket;
use crate::limit::Limit;
use crate::time::Nanos;

impl Policy {
    /// The limit as the policy file states it, such as `50/s, burst 100` or `20 requests in progress`. A limit that
    /// was not read from a file is described by its numbers.
    ///
    /// ```
    /// use tollgate_core::policy::Policy;
    ///
    /// let (policy, _) = Policy::read("limiters: { logins: { rate: 60/min, burst: 10, per: global } }").unwrap();
    /// let limit = policy.limiters()[0].choices[0][0];
    /// assert_eq!(&*policy.describe(&limit), "60/min, burst 10");
    /// ```
    pub fn describe(&self, limit: &Limit) -> Arc<str> {
        match self.stated.get(limit) {
            Some(stated) => Arc::clone(stated),
            None => describe(limit).into(),
        }
    }
}

/// A rate and its burst, if one is stated.
pub(crate) fn stated(Rate { count, period }: Rate, burst: Option<u64>) -> String {
    let period = spelled(period);
    // `10/s` reads better than `10/1s`, and `5/10min` needs its number.
    let unit = period.strip_prefix('1').filter(|unit| unit.starts_with(|c: char| c.is_alphabetic()));
    let period = unit.unwrap_or(&period);
    match burst {
        Some(burst) => format!("{count}/{period}, burst {burst}"),
        None => format!("{count}/{period}"),
    }
}

/// A limit by its numbers alone.
pub(crate) fn describe(limit: &Limit) -> String {
    let capacity = limit.capacity();
    match (limit, limit.window()) {
        (Limit::Bucket(bucket), _) => {
            // A queue lets one request leave at once, beside those that wait.
            let is_queue = bucket.undelayed().is_some();
            let burst = capacity - u64::from(is_queue);
            let rate = rate_of(bucket, burst);
            stated(rate, (is_queue || burst != rate.count).then_some(burst))
        }
        (Limit::IntervalBucket(bucket), _) => {
            let rate = Rate { count: bucket.refill(), period: bucket.period() };
            stated(rate, (capacity != rate.count).then_some(capacity))
        }
        (_, Some(period)) => stated(Rate { count: capacity, period }, None),
        (_, None) if capacity == 1 => "1 request in progress".to_owned(),
        (_, None) => format!("{capacity} requests in progress"),
    }
}

/// The rate of a bucket in the units that people use: a bucket only keeps the reduced fraction.
pub(crate) fn rate_of(bucket: &Bucket, burst: u64) -> Rate {
    const SECOND: u64 = 1_000_000_000;
    const UNITS: [u64; 4] = [SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND];
    let (tokens, nanos) = (u128::from(bucket.leak()), u128::from(bucket.token()));
    // How many come back in this time, if that is a whole number.
    let whole = |period: u64| {
        let count = tokens * u128::from(period);
        let is_whole = count > 0 && count.is_multiple_of(nanos);
        let count = u64::try_from(count / nanos).ok().filter(|_| is_whole)?;
        Some(Rate { count, period: Nanos::new(period) })
    };
    let reduced = Rate { count: bucket.leak(), period: Nanos::new(bucket.token()) };
    let mut rates = UNITS.into_iter().filter_map(whole).chain([reduced]);
    // Most bursts are one period's worth.
    let usual = rates.clone().find(|rate| rate.count == burst);
    usual.or_else(|| rates.next()).unwrap_or(reduced)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::fixed_window::WindowStart;

    const SECOND: Nanos = Nanos::from_secs(1);
    const MINUTE: Nanos = Nanos::from_secs(60);

    #[test]
    fn limits_without_a_file_are_described_in_the_units_that_people_use() {
        let aligned = WindowStart::Aligned { offset: Nanos::ZERO };
        for (limit, described) in [
            (Limit::token_bucket(50, 50, SECOND), "50/s"),
            (Limit::token_bucket(100, 50, SECOND), "50/s, burst 100"),
            (Limit::token_bucket(60, 60, MINUTE), "60/min"),
            (Limit::token_bucket(5, 5, MINUTE), "5/min"),
            (Limit::token_bucket(7, 7, Nanos::from_secs(3)), "7/3s"),
            (Limit::token_bucket(1, 1, Nanos::from_secs(7 * 86_400)), "1/7d"),
            (Limit::leaky_queue(10, 10, SECOND, 0), "10/s, burst 10"),
            (Limit::interval_bucket(100, 10, SECOND), "10/s, burst 100"),
            (Limit::fixed_window(1000, MINUTE, aligned), "1000/min"),
            (Limit::sliding_log(5, Nanos::from_secs(600)), "5/10min"),
            (Limit::concurrency(20), "20 requests in progress"),
            (Limit::leases(1, SECOND), "1 request in progress"),
        ] {
            assert_eq!(describe(&limit.unwrap()), described);
        }
    }

    /// Callers were told "11 requests per 1.1 s" of a limit that the policy states as `10/s, burst 10`.
    #[test]
    fn limits_are_described_the_way_the_policy_states_them() {
        for (fields, described) in [
            ("rate: 10/s, burst: 10, algorithm: leaky-queue", "10/s, burst 10"),
            ("rate: 60/min, burst: 10", "60/min, burst 10"),
            ("rate: 60/min", "60/min"),
            ("rate: 1_000 / hour", "1000/h"),
            ("rate: 100/min, algorithm: sub-windows", "100/min"),
            ("concurrency: 20", "20 requests in progress"),
        ] {
            let text = format!("limiters: {{ l: {{ {fields}, per: global }} }}");
            let (policy, _) = Policy::read(&text).unwrap();
            let limit = policy.limiters().first().unwrap().choices.first().unwrap().first().unwrap();
            assert_eq!(&*policy.describe(limit), described, "{fields}");
        }
    }
}
