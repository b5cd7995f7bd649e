//! Turns results into the Markdown report: one table per section, ours against the rest, and what must be reached.

use std::fmt::Write;

use crate::checks;
use crate::contenders::{Entry, Form, Limit, Role};
use crate::machine;
use crate::markdown::{header, row};
use crate::plan::{Results, Scenario, Settings, THREADS, size};

const COMMAND: &str = "cargo run --release --manifest-path bench/Cargo.toml";
const PEERS: [&str; 4] = ["governor", "throttlecrab", "limitador", "pingora-limits"];

pub fn markdown(settings: &Settings, entries: &[Entry], results: &Results) -> String {
    let mut out = String::from("# In-process benchmarks\n\n");
    out += &machine::describe(COMMAND, &machine::versions(&PEERS));
    out += &method(settings);
    let many = settings.many();
    for (form, title) in [(Form::Text, "text keys of 24 bytes"), (Form::Number, "u64 keys")] {
        let admitted = Section::new(form, Limit::Admit, &[1, 100_000, many]);
        let refused = Section::new(form, Limit::Refuse, &[1, 100_000, many]);
        let _ = write!(out, "\n## Admitted, {title}\n\n");
        out += &admitted.times(settings, entries, results);
        let _ = write!(out, "\n## Refused, {title}\n\n");
        out += &refused.times(settings, entries, results);
        if entries.iter().any(|entry| entry.role == Role::Ours) {
            let _ = write!(out, "\n## Ours against the rest, {title}\n\n");
            out += "Times faster than the best exact peer; times the floor's time.\n\n";
            out += &admitted.ratios(entries, results);
        }
    }
    out += "\n## Must reach\n\nSpeed against governor counts the generator in on both sides, which is the stricter. By the median, in brackets by the best.\n\n";
    out += &checks::table(settings, entries, results);
    out
}

fn method(settings: &Settings) -> String {
    format!(
        "\nNanoseconds of wall clock per decision, all threads together: median of {} repetitions, best in brackets. \
         Only ratios within one run mean anything.\n\n\
         - Each contender lives in a process of its own. Those of one size, admitted and refused, are filled with every \
         key first, then measured in turn for {} ms each after a tenth of that to warm up, and all of that is repeated.\n\
         - Keys are drawn uniformly at random and written on the fly, 64 at a time, into a buffer that is reused. What \
         that costs is measured alone and subtracted from every other row.\n\
         - Everyone reads the clock they read by default, once per decision. Built with fat link-time optimisation, \
         one codegen unit, no CPU-specific flags, and the system's allocator.\n\
         - Admitted: a limit so large that nothing is refused. Refused: every key was used up before.\n\
         - Floor: a hash of the key by foldhash and one compare-and-swap on an array of 16-byte cells; refused, a load.\n\
         - governor stores the type it is asked with: `[u8; 24]` is its best form for text of this length; `String` is \
         what text of any length needs, and it gets one here without an allocation.\n\
         - throttlecrab is shared through one lock. limitador is given a tenth of the keys where there are the most: filling it would take too long. \
         pingora-limits is a sketch of fixed size that over-counts.\n\
         - Bytes per key: resident memory of the process after filling, less before.\n",
        settings.repetitions(),
        settings.time().as_millis()
    )
}

/// The columns of a table: sizes, each on one and on two threads.
struct Section {
    columns: Vec<(Scenario, usize)>,
    /// The scenario whose memory is shown in a last column.
    memory: Option<Scenario>,
}

impl Section {
    fn new(form: Form, limit: Limit, sizes: &[usize]) -> Self {
        let scenario = |&keys| Scenario { form, keys, limit };
        let columns =
            THREADS.iter().flat_map(|&threads| sizes.iter().map(move |keys| (scenario(keys), threads)));
        Self {
            columns: columns.collect(),
            memory: sizes.last().map(scenario).filter(|_| limit == Limit::Admit),
        }
    }

    fn header(&self, memory: bool) -> String {
        let mut cells: Vec<String> = self.columns.iter().map(|&(s, t)| title(s, t)).collect();
        if let Some(scenario) = self.memory.filter(|_| memory) {
            cells.push(format!("bytes per key at {}", size(scenario.keys)));
        }
        header(&cells)
    }

    fn times(&self, settings: &Settings, entries: &[Entry], results: &Results) -> String {
        let mut out = self.header(true);
        for entry in entries {
            let mut cells: Vec<String> = self
                .columns
                .iter()
                .map(|&(scenario, threads)| {
                    let Some(time) = results.time(entry, scenario, threads) else {
                        return String::new();
                    };
                    let times = format!("{} ({})", nanos(time.median), nanos(time.best));
                    times + &fewer(settings, entry, scenario)
                })
                .collect();
            if cells.iter().all(String::is_empty) {
                continue;
            }
            if let Some(scenario) = self.memory {
                let bytes = results.bytes_per_key(entry, scenario);
                let bytes = bytes.filter(|_| entry.role != Role::Generator);
                let show = |bytes| format!("{bytes:.1}{}", fewer(settings, entry, scenario));
                cells.push(bytes.map_or(String::new(), show));
            }
            out += &row(entry.name, &cells);
        }
        out
    }

    fn ratios(&self, entries: &[Entry], results: &Results) -> String {
        let mut out = self.header(false);
        for ours in entries.iter().filter(|entry| entry.role == Role::Ours) {
            let cell = |&(scenario, threads): &(Scenario, usize)| {
                let of = |entry: &Entry| Some(results.time(entry, scenario, threads)?.median);
                let least = |role| {
                    let all = entries.iter().filter(|entry| entry.role == role);
                    all.filter_map(of).min_by(f64::total_cmp)
                };
                let time = of(ours)?;
                let (peer, floor) = (least(Role::Peer)? / time, time / least(Role::Floor)?);
                Some(format!("{peer:.1}x; {floor:.1}x"))
            };
            let cells: Vec<String> =
                (self.columns.iter()).map(|column| cell(column).unwrap_or_default()).collect();
            if !cells.iter().all(String::is_empty) {
                out += &row(ours.name, &cells);
            }
        }
        out
    }
}

fn title(scenario: Scenario, threads: usize) -> String {
    match threads {
        1 => size(scenario.keys),
        _ => format!("{}, {threads} threads", size(scenario.keys)),
    }
}

/// Says so where a contender had fewer keys than the column's title says.
fn fewer(settings: &Settings, entry: &Entry, scenario: Scenario) -> String {
    let keys = settings.keys(entry, scenario);
    if keys < scenario.keys { format!(" at {}", size(keys)) } else { String::new() }
}

fn nanos(value: f64) -> String {
    let digits = if value < 100.0 { 1 } else { 0 };
    format!("{value:.digits$}")
}
