//! Inside a worker process: fills one contender with keys, then times decisions whenever the parent asks.

use std::io::stdin;
use std::process::exit;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::contenders::{Contender, Limit};
use crate::keys::{BLOCK, Feed, Key};

/// What a worker is to prepare.
#[derive(Clone, Copy)]
pub struct Job {
    pub keys: usize,
    pub limit: Limit,
}

/// Blocks between two looks at the clock.
const STRIDE: usize = 16;

/// A decision that is not as the scenario says may happen to one key in a thousand at most.
const TOLERANCE: f64 = 0.001;

/// Answers on standard output: first the bytes that all the keys together take, then nanoseconds per decision for
/// each line `threads milliseconds` on standard input, until that closes.
pub fn serve<K: Key, C: Contender<K>>(job: Job) {
    let before = resident_bytes();
    let contender = C::new(job.keys, job.limit);
    fill(&contender, job);
    println!("{}", resident_bytes().saturating_sub(before));

    for (round, line) in (1..).zip(stdin().lines()) {
        let line = line.expect("a line from the parent");
        let (threads, millis) = line.split_once(' ').expect("threads and milliseconds");
        let threads = threads.parse().expect("a number of threads");
        let time = Duration::from_millis(millis.parse().expect("a number of milliseconds"));
        println!("{}", time_decisions(&contender, job, threads, time, round));
    }
    // Freeing ten million keys one by one is of no interest.
    exit(0);
}

/// Asks once for each key, or, if all are to be refused, until each is.
fn fill<K: Key, C: Contender<K>>(contender: &C, job: Job) {
    let mut key = K::blank();
    for id in 0..job.keys as u64 {
        key.write(id);
        match job.limit {
            Limit::Admit => assert!(contender.decide(&key), "key {id} was refused"),
            Limit::Refuse => {
                assert!((0..=job.limit.burst()).any(|_| !contender.decide(&key)), "key {id} is never refused")
            }
        }
    }
}

/// Nanoseconds of wall clock per decision, all threads together.
fn time_decisions<K: Key, C: Contender<K>>(
    contender: &C,
    job: Job,
    threads: u64,
    time: Duration,
    round: u64,
) -> f64 {
    let start_line = Barrier::new(threads as usize);
    let per_second: f64 = thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let start_line = &start_line;
                scope.spawn(move || {
                    let mut feed = Feed::<K>::new(job.keys, round * threads + thread);
                    run(contender, &mut feed, time / 10);
                    start_line.wait();
                    let tally = run(contender, &mut feed, time);
                    tally.check(job.limit);
                    tally.decisions as f64 / tally.elapsed.as_secs_f64()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("decisions as expected")).sum()
    });
    1e9 / per_second
}

struct Tally {
    decisions: usize,
    admitted: usize,
    elapsed: Duration,
}

impl Tally {
    fn check(&self, limit: Limit) {
        let wrong = match limit {
            Limit::Admit => self.decisions - self.admitted,
            Limit::Refuse => self.admitted,
        };
        assert!(
            wrong as f64 <= TOLERANCE * self.decisions as f64,
            "{wrong} of {} decisions went the wrong way",
            self.decisions
        );
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock to time what it runs")]
#[inline(never)]
fn run<K: Key, C: Contender<K>>(contender: &C, feed: &mut Feed<K>, time: Duration) -> Tally {
    let start = Instant::now();
    let (mut decisions, mut admitted) = (0, 0);
    loop {
        for _ in 0..STRIDE {
            admitted += contender.decide_block(feed.next_block());
        }
        decisions += STRIDE * BLOCK;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Tally { decisions, admitted, elapsed };
        }
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux's /proc");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("VmRSS in kB") * 1024
}
