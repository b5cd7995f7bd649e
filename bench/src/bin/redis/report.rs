//! Turns results into the Markdown report.

use std::fmt::Write;

use tollgate_bench::machine;
use tollgate_bench::markdown::{header, row};
use tollgate_testkit::RedisServer;

use crate::checks;
use crate::contenders::Question;
use crate::load::{SUBJECTS, TASKS};
use crate::plan::{Mode, Results, Row, Sample, Settings, WORKERS};

const COMMAND: &str = "cargo run --release --manifest-path bench/Cargo.toml --bin redis";
const QUESTIONS: [(Question, &str); 3] = [
    (Question::OneLimitAdmits, "One limit, admitted"),
    (Question::OneLimitRefuses, "One limit, refused"),
    (Question::ThreeLimitsAdmit, "Three limits, admitted"),
];

pub fn markdown(settings: &Settings, server: &RedisServer, results: &Results) -> String {
    let peers = format!("Redis {}, {} (the client crate)", version(server), machine::versions(&["redis"]));
    let mut out = String::from("# Redis benchmarks\n\n");
    out += &machine::describe(COMMAND, &peers);
    out += &method(settings);
    for (question, title) in QUESTIONS {
        let _ = write!(out, "\n## {title}\n");
        for mode in Mode::ALL {
            let rows = results.0.iter().filter(|row| row.question == question);
            let _ = write!(out, "\n{}:\n\n{}", capitalised(mode.label()), table(mode, rows));
        }
    }
    out += "\n## Must reach\n\n";
    out += &checks::table(results);
    out
}

fn method(settings: &Settings) -> String {
    format!(
        "\nMedians of {} repetitions of {} ms. Server and clients share one machine, so only ratios within one run mean \
         anything.\n\n\
         - One Redis server, on the loopback interface, without persistence. All contenders live in one process and have \
         a connection each. They take turns, and that is repeated.\n\
         - Before each turn the server is emptied and each of {SUBJECTS} subjects is asked for once. A turn is idle first, \
         then loaded. Subjects are drawn uniformly at random.\n\
         - Idle: one task asks for one decision after the other. Loaded: {TASKS} tasks do. Both on a tokio runtime with \
         {WORKERS} threads.\n\
         - p50 and p99: how long a decision takes, as its task sees it, in microseconds.\n\
         - Redis CPU: `used_cpu_user` and `used_cpu_sys` of `INFO cpu`, after less before, per decision, in microseconds. \
         Client CPU: `getrusage` of the client's process, the same way. It holds the cost of asking, some tenths of a \
         microsecond, for everyone.\n\
         - Changes: `rdb_changes_since_last_save` of `INFO persistence`, after less before, per decision.\n\
         - A decision that fails, or is not what the table's title says, ends the benchmark without figures.\n\
         - One limit: a token bucket of 1000, refilled by 100 per second. Refused: a bucket of 1, refilled once a day. \
         Three limits: the first of these buckets, one of 5000 refilled by 5000 per hour, and 1000 leases of a minute. \
         Each request takes a new lease and nobody gives one back.\n\
         - tollgate: one call of the store per decision, with a deadline of one second and a heartbeat of one \
         hour, so that all changes are those of decisions. Decisions that wait at the same \
         moment share an `EVALSHA`. Several limits are decided together, all or nothing.\n\
         - Scripts: one `EVALSHA` per limit over redis-rs's `MultiplexedConnection`. The two-key bucket does two `GET` and \
         two `SETEX`. GCRA does `TIME`, `GET` and `SET`. The lease does `TIME`, `ZREMRANGEBYSCORE`, `ZCARD`, `ZADD` and \
         `PEXPIRE`. None of them knows of the others, so what one took stays taken if another refuses.\n\
         - Built with fat link-time optimisation, one codegen unit, no CPU-specific flags, and the system's allocator.\n",
        settings.rounds(),
        settings.time().as_millis()
    )
}

fn table<'a>(mode: Mode, rows: impl Iterator<Item = &'a Row>) -> String {
    type Figure = fn(&Sample) -> f64;
    let mut columns: Vec<(&str, usize, Figure)> = vec![
        ("p50", 0, |s| s.p50),
        ("p99", 0, |s| s.p99),
        ("Redis CPU", 1, |s| s.server_cpu),
        ("client CPU", 1, |s| s.client_cpu),
        ("changes", 2, |s| s.changes),
    ];
    if mode == Mode::Loaded {
        columns.insert(0, ("decisions per second", 0, |s| s.per_second));
    }
    let titles: Vec<String> = columns.iter().map(|(title, ..)| (*title).to_owned()).collect();
    let mut out = header(&titles);
    for contender in rows {
        let cell = |&(_, digits, figure): &(_, usize, Figure)| {
            format!("{:.digits$}", contender.median(mode, figure))
        };
        out += &row(contender.name, &columns.iter().map(cell).collect::<Vec<_>>());
    }
    out
}

fn version(server: &RedisServer) -> String {
    let info = server.command(&["INFO", "server"]);
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    version.unwrap_or("of unknown version").trim().to_owned()
}

fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}
