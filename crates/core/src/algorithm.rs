//! The contract that every algorithm meets, and how small states travel in one word.

use std::fmt::Debug;

use crate::outcome::Outcome;
use crate::time::Timestamp;

/// A limiter as a pure function of `(state, now, cost)`.
///
/// * `Default` is the state of a key that was never seen; an idle state is worth no more than that.
/// * A refused call leaves the state as it was, unless the algorithm is told to count refused calls.
/// * A cost of 0 is a peek. A cost above the capacity is refused before anything is multiplied.
/// * `now` never goes back for one key: stores and clocks see to that.
pub trait Algorithm {
    /// What is remembered of a key between two calls.
    type State: Clone + Debug + Default + PartialEq;

    /// The most that one call can ever take.
    fn capacity(&self) -> u64;

    /// Decides a call and charges it if it is allowed.
    fn decide(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Outcome;

    /// What [`decide`](Self::decide) would answer, without taking anything: `remaining` and `reset_after` are
    /// those of the untouched state.
    fn estimate(&self, state: &Self::State, now: Timestamp, cost: u64) -> Outcome;

    /// Gives back what a call took, never above the capacity. `taken` is when it was taken.
    fn refund(&self, state: &mut Self::State, now: Timestamp, cost: u64, taken: Timestamp) -> Outcome;

    /// Takes back a charge that was made at `taken` for a call that was then refused elsewhere. What has been
    /// refilled since then is not credited twice, so an undo can only err on the strict side.
    fn undo(&self, state: &mut Self::State, now: Timestamp, cost: u64, taken: Timestamp) {
        let _ = self.refund(state, now, cost, taken);
    }

    /// How much of the quota is in use, as a share of 2^32. What is evicted first is what has the least.
    fn level(&self, state: &Self::State, now: Timestamp) -> u64;

    /// A state that is at least as strict as both, now and at every later instant.
    fn join(&self, a: &Self::State, b: &Self::State, now: Timestamp) -> Self::State;

    /// The state under these parameters of a key that was charged under `old` ones until `changed`: what was
    /// used stays used.
    fn convert(&self, old: &Self, state: &Self::State, changed: Timestamp) -> Self::State;
}

/// Algorithms whose state fits in one 64-bit word, counted from a base instant.
pub trait Packed: Algorithm<State: Copy> {
    /// How long after its base a word can hold this algorithm's states; 0 if it never can.
    fn span(&self) -> u64;

    /// The base for words that are first written at `now`.
    fn base(&self, now: Timestamp) -> Timestamp;

    /// The word for `state`, which was reached no later than `base + span`.
    fn pack(&self, base: Timestamp, state: Self::State) -> u64;

    /// The state in a word.
    fn unpack(&self, base: Timestamp, word: u64) -> Self::State;
}

/// Bits needed for a count from 0 to `max`.
pub(crate) const fn bits_for(max: u64) -> u32 {
    u64::BITS - max.leading_zeros()
}

/// The part of `whole` that each of `nodes` gets, at least 1, and by how much its time must grow so that all together
/// never get more than the whole in the long run.
pub(crate) fn divide(whole: u64, nodes: u64) -> (u64, u64) {
    ((whole / nodes).max(1), nodes.div_ceil(whole.max(1)).max(1))
}

/// `used / capacity` as a share of 2^32, at most 2^32.
pub(crate) fn share(used: u64, capacity: u64) -> u64 {
    let used = used.min(capacity);
    // At most 2^32, because used <= capacity.
    (((used as u128) << 32) / capacity.max(1) as u128) as u64
}
