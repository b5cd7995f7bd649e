//! The parent's end of a worker: each contender lives in a process of its own, so that its memory can be told apart.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use crate::contenders::{self, Form, Limit};
use crate::measure::Job;

/// First argument of a process that is a worker.
pub const SUBCOMMAND: &str = "worker";

pub struct Worker {
    name: &'static str,
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts filling; `bytes` waits until that is done.
    pub fn start(name: &'static str, form: Form, job: Job) -> Self {
        let this_program = std::env::current_exe().expect("the path of this program");
        let mut process = Command::new(this_program)
            .args([SUBCOMMAND, name])
            .arg(if form == Form::Text { "text" } else { "number" })
            .arg(job.keys.to_string())
            .arg(if job.limit == Limit::Admit { "admit" } else { "refuse" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker process");
        Self {
            name,
            requests: process.stdin.take(),
            answers: BufReader::new(process.stdout.take().expect("a piped output")),
            process,
        }
    }

    /// Bytes that all keys take together. To be called once, first.
    pub fn bytes(&mut self) -> u64 {
        self.answer()
    }

    /// Nanoseconds per decision.
    pub fn measure(&mut self, threads: usize, time: Duration) -> f64 {
        let requests = self.requests.as_mut().expect("an open worker");
        writeln!(requests, "{threads} {}", time.as_millis()).expect("a worker that listens");
        self.answer()
    }

    fn answer<T: FromStr>(&mut self) -> T {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let answer = read.ok().and_then(|_| line.trim().parse().ok());
        answer.unwrap_or_else(|| panic!("the worker for '{}' failed", self.name))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.process.wait();
    }
}

/// The other end: what the process started by `Worker::start` does with the arguments after `SUBCOMMAND`.
pub fn become_worker(args: &[String]) {
    let [name, form, keys, limit] = args else {
        panic!("a worker takes a name, a form of key, a number of keys and a limit");
    };
    let form = if form == "text" { Form::Text } else { Form::Number };
    let limit = if limit == "admit" { Limit::Admit } else { Limit::Refuse };
    let keys = keys.parse().expect("a number of keys");
    let entries = contenders::all();
    let entry = entries.iter().find(|entry| entry.name == *name);
    let serve = entry.and_then(|entry| entry.serve(form));
    serve.expect("a contender with that form of key")(Job { keys, limit });
}
