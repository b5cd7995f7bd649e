//! Asks a contender for decisions, and stops at the first that is not as it should be.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tollgate_bench::keys::{Feed, Key, Text};

use crate::contenders::{Contender, Failure};

pub const SUBJECTS: usize = 10_000;
/// Tasks of the run in which there is always something to do.
pub const TASKS: u64 = 256;

/// So many tasks, each asking for one decision after the other.
#[derive(Clone, Copy)]
pub struct Load {
    pub tasks: u64,
    pub time: Duration,
    /// Whether every decision has to admit, or to refuse.
    pub admitted: bool,
    pub seed: u64,
}

/// A contender of whatever type.
pub trait Loadable {
    /// Asks once for each subject, and is admitted.
    fn fill(&self, runtime: &Runtime) -> Result<(), Failure>;

    /// How long each decision took, in no order.
    fn load(&self, runtime: &Runtime, load: Load) -> Result<Vec<Duration>, Failure>;
}

impl<C: Contender> Loadable for C {
    fn fill(&self, runtime: &Runtime) -> Result<(), Failure> {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let contender = self.clone();
            let subjects = (task..SUBJECTS as u64).step_by(TASKS as usize);
            tasks.spawn_on(fill(contender, subjects), runtime.handle());
        }
        runtime.block_on(all(tasks)).map(|_| ())
    }

    fn load(&self, runtime: &Runtime, load: Load) -> Result<Vec<Duration>, Failure> {
        let ends = Instant::now() + load.time;
        let mut tasks = JoinSet::new();
        for task in 0..load.tasks {
            let feed = Feed::new(SUBJECTS, load.seed * TASKS + task);
            tasks.spawn_on(ask_until(ends, self.clone(), feed, load.admitted), runtime.handle());
        }
        Ok(runtime.block_on(all(tasks))?.concat())
    }
}

async fn fill(contender: impl Contender, subjects: impl Iterator<Item = u64>) -> Result<(), Failure> {
    let mut subject = Text::blank();
    for id in subjects {
        subject.write(id);
        expect(true, contender.decide(&subject).await?)?;
    }
    Ok(())
}

async fn ask_until(
    ends: Instant,
    contender: impl Contender,
    mut feed: Feed<Text>,
    admitted: bool,
) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::new();
    loop {
        for subject in feed.next_block() {
            let begun = Instant::now();
            if begun >= ends {
                return Ok(times);
            }
            let answer = contender.decide(subject).await?;
            times.push(begun.elapsed());
            expect(admitted, answer)?;
        }
    }
}

fn expect(admitted: bool, answer: bool) -> Result<(), Failure> {
    match answer == admitted {
        true => Ok(()),
        false if answer => Err("a request was admitted that should have been refused".into()),
        false => Err("a request was refused that should have been admitted".into()),
    }
}

async fn all<T: 'static>(mut tasks: JoinSet<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(result) = tasks.join_next().await {
        results.push(result??);
    }
    Ok(results)
}
