//! Plans of callers, by their names or by patterns of them.

use hashbrown::HashMap;

use super::condition::Glob;
use super::identify::{Caller, Named};

/// Which plan a caller has. A name goes before patterns, and of these the one with the longest text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlanTable {
    names: HashMap<Named, usize>,
    /// In the order in which they are asked.
    patterns: Vec<(Glob, usize)>,
}

impl PlanTable {
    /// False if the name was there before.
    #[must_use]
    pub(crate) fn insert(&mut self, name: Named, plan: usize) -> bool {
        self.names.insert(name, plan).is_none()
    }

    /// Behind all that have as much text or more: the first that was written wins.
    pub(crate) fn insert_pattern(&mut self, pattern: Glob, plan: usize) {
        let at = self.patterns.partition_point(|(other, _)| other.literal_len() >= pattern.literal_len());
        self.patterns.insert(at, (pattern, plan));
    }

    /// Plans that somebody may have by it.
    pub(crate) fn plans(&self) -> impl Iterator<Item = usize> {
        self.names.values().copied().chain(self.patterns.iter().map(|(_, plan)| *plan))
    }

    pub(crate) fn patterns(&self) -> usize {
        self.patterns.len()
    }

    pub(crate) fn plan_of(&self, caller: &Caller<'_>) -> Option<usize> {
        if let Some(plan) = caller.names().find_map(|name| self.names.get(&name)) {
            return Some(*plan);
        }
        let is_like = |pattern: &Glob| caller.texts().any(|name| pattern.is_like(name));
        self.patterns.iter().find(|(pattern, _)| is_like(pattern)).map(|(_, plan)| *plan)
    }
}
