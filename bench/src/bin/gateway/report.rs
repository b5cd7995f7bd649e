//! Turns results into the Markdown report.

use tollgate_bench::figures::range;
use tollgate_bench::machine;
use tollgate_bench::markdown::{header, row};

use crate::checks;
use crate::exchange::SLICE;
use crate::plan::{Results, Row, Sample, Settings, WARM_UP_SECONDS};
use crate::tools::Tools;
use crate::wrk::{CONNECTIONS, KEY};

const COMMAND: &str = "make bench-gateway";

pub fn markdown(settings: &Settings, tools: &Tools, results: &Results) -> String {
    let mut out = String::from("# Gateway benchmarks\n\n");
    out += &machine::describe(COMMAND, &tools.versions());
    out += &format!("- Load of the machine before: {}\n", results.load_before);
    out += &method(settings);
    out += "\n## Figures\n\n";
    out += &table(results);
    out += "\n## Must reach\n\n";
    out += &checks::table(results);
    out
}

fn method(settings: &Settings) -> String {
    let (rounds, seconds, threads) = (settings.rounds(), settings.seconds(), settings.threads);
    let (processes, pairs, slice) = (settings.processes(), settings.pairs(), SLICE.as_millis());
    format!(
        "\nMedians of {rounds} repetitions of {seconds} s each, in brackets the least and the most. Load, proxy and server share \
         one machine, so only ratios within one run mean anything, and CPU says as much as requests per second.\n\n\
         - Load: `wrk -t1 -c{CONNECTIONS}`, connections are kept, each request is `GET /v1/charges` with `{}: {}`.\n\
         - The server behind all of them is nginx with one worker process and `return 200` with 41 bytes; connections with \
         it are kept.\n\
         - All proxies run all the time, each in a process of its own, and take turns: {WARM_UP_SECONDS} s to warm up, then \
         the repetition. That is repeated.\n\
         - Threads that serve requests (for nginx: worker processes), for each proxy: {threads}. Envoy's and tollgate's own \
         default is one for each processor. None writes an access log. Each tells the server for whom a request \
         is made by `x-forwarded-for`.\n\
         - nginx: `limit_req` by address. HAProxy: a stick table by address, `http_req_rate`. Envoy: the local rate limit, \
         one bucket for all. tollgate: the policy of examples/demo.yaml, by the key of the caller, all four limiters in \
         memory.\n\
         - Limits are 1,000,000 requests a second, and more in progress than there are: nothing is refused. Before the run \
         each proxy was started with a limit of one request and has answered 429 to one too many. Everything refused: a limit \
         of one request an hour.\n\
         - p50 and p99: as wrk sees them, in milliseconds.\n\
         - Errors: connections that broke, and answers that were a refusal where none should be, or none where each should \
         be; all repetitions together.\n\
         - CPU: user and system time of the proxy and its children, from `/proc/PID/stat`, after less before, in seconds per \
         100,000 requests; beside it how much of that is spent in the kernel, which receives and sends, and \
         what the server behind it spends.\n\
         - What the four limiters cost is measured by itself: they cost less than the speed of a shared machine changes from one \
         second to the next. A gateway is under load all the time, and its policy is exchanged: {pairs} pairs of slices of \
         {slice} ms, one with the limiters and one with `limiters: {{}}`, side by side. That is done by {processes} processes, \
         one after another: where one has its memory makes a difference for as long as it runs. CPU is that of its threads, from \
         `/proc/PID/task/*/schedstat`; requests are counted by the server.\n\
         - tollgate is built by `cargo build --release`, the others are as their packages have them.\n",
        KEY.0, KEY.1
    )
}

type Figure = fn(&Sample) -> Option<f64>;

fn table(results: &Results) -> String {
    let columns: [(&str, usize, Figure); 6] = [
        ("requests per second", 0, checks::per_second),
        ("p50", 2, |sample| Some(sample.load.p50)),
        ("p99", 2, |sample| Some(sample.load.p99)),
        ("CPU", 2, checks::cpu),
        ("in the kernel", 2, checks::kernel),
        ("CPU of the server", 2, |sample| Some(sample.server_cpu.all())),
    ];
    let mut titles: Vec<String> = columns.iter().map(|(title, ..)| (*title).to_owned()).collect();
    titles.push("errors".to_owned());
    let mut out = header(&titles);
    for contender in &results.rows {
        let mut cells: Vec<String> =
            columns.iter().map(|&(_, digits, figure)| cell(contender, digits, figure)).collect();
        cells.push(format!("{:.0}", contender.samples.iter().map(|sample| sample.errors).sum::<f64>()));
        out += &row(contender.name, &cells);
    }
    out
}

fn cell(contender: &Row, digits: usize, figure: Figure) -> String {
    let Some(median) = contender.median(figure) else { return String::new() };
    let (least, most) = range(&contender.figures(figure));
    match contender.samples.len() {
        1 => format!("{median:.digits$}"),
        _ => format!("{median:.digits$} ({least:.digits$} to {most:.digits$})"),
    }
}
