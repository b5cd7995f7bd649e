//! `tollgate check`: a policy that is good is told so in a line, and whatever is wrong with another is told with its place.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot set itself up fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};
use tollgate_core::policy::{Policy, schema};

/// A folder of its own for a test.
fn folder(test: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("check").join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
    dir
}

fn tollgate(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("check").current_dir(dir);
    command
}

/// The exit code, and what was printed to both.
fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn check(dir: &Path, file: &str) -> (i32, String, String) {
    told(&tollgate(dir).arg(file).output().unwrap())
}

fn check_input(bytes: &[u8]) -> (i32, String, String) {
    let mut child = tollgate(Path::new("/"))
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who has read enough does not read the rest.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    told(&child.wait_with_output().unwrap())
}

const GOOD: &str = "\
trusted_proxies: []
plans: { free: { rate: 5/s }, pro: { rate: 50/s } }
limiters: { request-rate: { rate: plan } }
identify: { plan: table, table: { sk_1: pro } }
";

#[test]
fn a_good_policy_is_told_so_in_one_line() {
    let warned = GOOD.replace("trusted_proxies: []\n", "");
    let dir = folder("good", &[("good.yaml", GOOD.as_bytes()), ("warned.yaml", warned.as_bytes())]);
    let (code, out, err) = check(&dir, "good.yaml");
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (0, "good.yaml: 1 limiter, 2 plans, 4 classes; no warnings\n", "")
    );
    let (code, out, err) = check(&dir, "warned.yaml");
    assert_eq!((code, out.as_str()), (0, "warned.yaml: 1 limiter, 2 plans, 4 classes; 1 warning\n"));
    assert!(err.starts_with("warning: callers are told apart by their addresses"), "{err}");
    assert!(err.contains(" --> warned.yaml:2:13\n"), "{err}");
    let (code, out, err) = check_input(GOOD.as_bytes());
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (0, "stdin: 1 limiter, 2 plans, 4 classes; no warnings\n", "")
    );
}

/// `tollgate run` used ./tollgate.yaml, and `tollgate check` demanded a FILE.
#[test]
fn check_without_a_file_uses_the_file_that_run_would_use() {
    let dir = folder("default_file", &[("tollgate.yaml", GOOD.as_bytes()), ("other.yaml", b"limiters: []")]);
    let (code, out, _) = told(&tollgate(&dir).output().unwrap());
    assert!(code == 0 && out.starts_with("tollgate.yaml: "), "{code} {out}");
    let (code, _, err) = told(&tollgate(&dir).env("TOLLGATE_POLICY", "other.yaml").output().unwrap());
    assert!(code == 1 && err.contains("other.yaml:1"), "{code} {err}");
    let (code, out, _) = told(&tollgate(&dir).arg("--schema").output().unwrap());
    assert!(code == 0 && out.starts_with('{'), "{code} {out}");
    let empty = folder("no_default_file", &[]);
    let (code, _, err) = told(&tollgate(&empty).output().unwrap());
    assert_eq!(
        (code, err.as_str()),
        (2, "error: there is no tollgate.yaml here: name the policy file, tollgate check FILE\n")
    );
}

#[test]
fn what_limiters_do_while_the_store_is_away_is_printed() {
    let text = "\
store: { url: 'redis://127.0.0.1:6379', secret: 0123456789abcdef }
limiters:
  rate: { rate: 5/s, per: global }
  few: { concurrency: 5, per: global }
  logins: { rate: 5/min, per: global, on_store_failure: closed }
  searches: { rate: 5/min, per: global, on_store_failure: local }
  boxes: { workers: {} }
";
    let (code, out, _) = check_input(text.as_bytes());
    let expected = "while the store is away: rate, few let requests pass; searches decides by this node's share; \
                    logins rejects requests with 503\n";
    assert_eq!(code, 0);
    assert!(out.ends_with(expected), "{out}");
    let (_, out, _) = check_input(GOOD.as_bytes());
    assert!(!out.contains("away"), "a store in memory never is: {out}");
}

#[test]
fn every_mistake_is_told_with_the_name_of_the_file() {
    let text = "store: redis://cache:99999\nlimiters:\n  a: { rat: 5/s }\n  b: { rate: 0/s }\n";
    let dir = folder("wrong", &[("wrong.yaml", text.as_bytes())]);
    let (code, out, err) = check(&dir, "wrong.yaml");
    assert_eq!((code, out.as_str()), (1, ""));
    for line in [
        "error: \"redis://cache:99999\" is no address of a store",
        " --> wrong.yaml:1:8\n",
        "error: there is no field \"rat\"\n --> wrong.yaml:3:8\n",
        "  |        ^^^ did you mean `rate`?\n",
        " --> wrong.yaml:4:14\n",
    ] {
        assert!(err.contains(line), "{line} is not in\n{err}");
    }
    let (code, out, err) = check_input(text.as_bytes());
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains(" --> stdin:3:8\n"), "{err}");
    let (code, _, err) = check_input(b"");
    assert!(code == 1 && err.contains("this policy is empty"), "{err}");
}

#[test]
fn the_password_of_a_store_is_not_shown() {
    let text = "store: { url: 'redis://user:hunter2@cache:99999', secret: hunter2 }\nlimiters: {}\n";
    let (code, _, err) = check_input(text.as_bytes());
    assert!(code == 1 && err.contains("is no address of a store") && !err.contains("hunter2"), "{err}");
}

#[test]
fn a_file_that_cannot_be_read_is_told_in_words() {
    let dir = folder(
        "unreadable",
        &[
            ("latin.yaml", b"limiters:\n  # caf\xe9\n  a: { rate: 5/s }\n"),
            ("utf16.yaml", b"\xff\xfel\0i\0"),
            ("closed.yaml", b"limiters: {}\n"),
        ],
    );
    fs::create_dir_all(dir.join("folder")).unwrap();
    let cases = [
        ("missing.yaml", "error: there is no file missing.yaml\n"),
        ("folder", "error: folder is a folder: a policy is a file, such as folder/tollgate.yaml\n"),
        ("latin.yaml", "error: latin.yaml is no text: there are bytes on line 2 that are not UTF-8\n"),
        ("utf16.yaml", "error: utf16.yaml is UTF-16: save it as UTF-8\n"),
        ("closed.yaml/x", "error: closed.yaml/x cannot be read: "),
        ("", "error: "),
    ];
    for (file, words) in cases {
        let (code, out, err) = check(&dir, file);
        assert_eq!((code, out.as_str()), (2, ""), "{file}: {err}");
        assert!(err.starts_with(words), "{file}: {err}");
    }
    // Whoever may read everything may read this too.
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir.join("closed.yaml"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(dir.join("closed.yaml")).is_err() {
        assert_eq!(check(&dir, "closed.yaml").2, "error: closed.yaml may not be read by this user\n");
    }
}

#[test]
fn a_file_of_50_mb_is_refused_and_not_read() {
    let dir = folder("large", &[]);
    let line = b"# a comment that goes on and on and on and on, with \xc3\xa9\n";
    fs::write(dir.join("large.yaml"), line.repeat((50 << 20) / line.len())).unwrap();
    // There is no end of this one.
    for file in ["large.yaml", "/dev/zero"] {
        let (code, out, err) = check(&dir, file);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        let too_large = "error: the file is too large: a policy may have up to 4194304 bytes (4 MiB)\n";
        assert!(err.starts_with(too_large) && err.len() < 500, "{err}");
    }
    assert_eq!(check_input(&b"#\n".repeat(3 << 20)).0, 1);
}

#[test]
fn a_limit_that_the_store_cannot_keep_is_told() {
    let policy = |store: &str| {
        format!(
            "store: {store}\ntrusted_proxies: []\nlimiters: {{ a: {{ rate: 5/s }}, b: {{ rate: 9_000_000_000_000_000/d }} }}\n"
        )
    };
    let (code, out, err) = check_input(policy("redis://127.0.0.1:1").as_bytes());
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error: the limiter \"b\" does not fit the store: "), "{err}");
    assert!(err.ends_with("\n --> stdin\n"), "{err}");
    let (code, ..) = check_input(policy("memory").replace("9_000_000_000_000_000/d", "5/d").as_bytes());
    assert_eq!(code, 0);
}

#[test]
fn files_with_keys_are_looked_for_beside_the_policy() {
    let policy = |file: &str| {
        format!("limiters: {{}}\nidentify:\n  caller: [jwt: sub]\n  jwt: {{ jwks_file: {file} }}\n")
            .into_bytes()
    };
    let key = br#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let dir = folder("keys", &[("keys.json", key), ("empty.json", b"\n")]);
    fs::create_dir_all(dir.join("below")).unwrap();
    for (file, problem) in [
        ("keys.json", ""),
        ("missing.json", "there is no file "),
        ("empty.json", "empty.json is empty"),
        ("below", "below is a folder"),
    ] {
        fs::write(dir.join("policy.yaml"), policy(file)).unwrap();
        // Wherever one is.
        for (from, path) in [(dir.as_path(), "policy.yaml"), (dir.join("below").as_path(), "../policy.yaml")]
        {
            let (code, _, err) = check(from, path);
            assert_eq!(code, i32::from(!problem.is_empty()), "{file}: {err}");
            assert!(err.contains(problem), "{file}: {err}");
            assert!(problem.is_empty() || err.contains("policy.yaml:4:21\n"), "{file}: {err}");
        }
    }
    let absolute = dir.join("keys.json");
    assert_eq!(check_input(&policy(&absolute.display().to_string())).0, 0);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn examples() -> Vec<(String, String)> {
    let mut examples = Vec::new();
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            examples.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    examples.sort();
    examples
}

#[test]
fn every_example_is_good_without_a_warning() {
    let names: Vec<_> = examples().into_iter().map(|(name, _)| name).collect();
    let expected = [
        "demo.yaml",
        "expensive-endpoints.yaml",
        "llm.yaml",
        "login.yaml",
        "public-api.yaml",
        "webhooks.yaml",
    ];
    assert_eq!(names, expected);
    for name in names {
        let (code, out, err) = check(&root().join("examples"), &name);
        assert_eq!((code, err.as_str()), (0, ""), "{name}");
        // Notes may follow, such as which limiters let requests pass while the store is away.
        let first = out.lines().next().unwrap_or_default();
        assert!(first.starts_with(&name) && first.ends_with("; no warnings"), "{out}");
    }
}

/// YAML as JSON, for validators that know only that.
fn to_json(text: &str) -> Value {
    enum Open {
        List(Vec<Value>),
        Map(Map<String, Value>, Option<String>),
    }
    let mut open: Vec<Open> = Vec::new();
    let mut root = Value::Null;
    for event in Parser::new_from_str(text) {
        let value = match event.unwrap().0 {
            Event::Scalar(text, ScalarStyle::Plain, ..) => match text.parse::<u64>() {
                Ok(number) => json!(number),
                Err(_) if matches!(&*text, "" | "~" | "null") => Value::Null,
                Err(_) => json!(text),
            },
            Event::Scalar(text, ..) => json!(text),
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop().unwrap() {
                Open::List(list) => list.into(),
                Open::Map(map, _) => map.into(),
            },
            Event::Alias(_) => panic!("examples have no aliases"),
            _ => continue,
        };
        match open.last_mut() {
            None => root = value,
            Some(Open::List(list)) => list.push(value),
            Some(Open::Map(map, key)) => match key.take() {
                Some(name) => drop(map.insert(name, value)),
                None => *key = Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            },
        }
    }
    root
}

/// A policy that uses every field there is.
const EVERYTHING: &str = "
store: { url: 'redis://cache:6379', secret: s, prefix: p, deadline: 10ms, expected_nodes: 2, max_bytes: 64MB }
mode: enforce
identify:
  caller: [header: x-api-key, cookie: session, query: key, jwt: sub, tls, ip]
  plan: [tls, table]
  default_plan: free
  table: { sk_1: pro, 17: pro }
  jwt: { jwks_file: keys.json, algorithms: [RS256, ES256], header: authorization, issuer: i, audience: a }
  ipv6_prefix: 56
trusted_proxies: [10.0.0.0/8, 'fd00::/8', 192.0.2.1]
trusted_hops: 2
address_header: x-forwarded-for
path_case: insensitive
plans:
  free: { rate: 50/s, burst: 100, concurrency: 5 }
  pro: { rate: [10/s, { rate: 1_000 / 10 min, burst: 20 }], concurrency: unlimited }
  all: { rate: unlimited, concurrency: 1_000 }
classes:
  critical: POST /v1/charges
  test: [header x-api-key: sk_test_*, { header: { x-test: ['1', 2] } }]
  inside: { network: 10.0.0.0/8, host: '*.internal', method: [GET, POST], path: /a/*, path_case: sensitive, not: [/a/b, { header x: y }] }
  unused: []
limiters:
  a: { rate: plan, per: [caller, plan, path, method, host, ip, class, header: x-tenant], match: [GET *, { class: [test, other], plan: pro }], cost: { class: { test: 0 }, otherwise: 2 }, mode: dark, sample: 12.5%, on_store_failure: open }
  b: { rate: 50/s, burst: 100, algorithm: token-bucket, per: caller, match: POST *, cost: 2, candidate: 40/s }
  c: { rate: [10/s, 1000/h], algorithm: sub-windows, windows: 5, per: { header: x-tenant }, cost: { header: x-cost, otherwise: 1, max: 9 }, candidate: { rate: 9/s } }
  d: { concurrency: 20, lease: 90s, per: global, candidate: 10, mode: off }
  d2: { rate: 5/s, cost: { response_header: x-used } }
  e: { concurrency: plan, lease: 90s, match: { not: GET * } }
  f: { fleet: 400, reserve: 20%, for: [critical, test], count: total, lease: 90s }
  g: { workers: { good: 70%, bad: 80%, grace: 28s, full: 120s, every: 8s, source: { in_flight: 64 }, shed: [other, test] } }
overrides:
  sk_1: { a: 5/s, d: 5, plan: pro, f: { fleet: 500, reserve: 10% } }
  sk_2: { a: unlimited, b: { rate: 5/s, burst: 9 }, d: { concurrency: unlimited } }
allow: [192.0.2.0/24, caller: sk_ops, { network: 10.1.0.0/16, caller: 5 }]
block: []
answers: { headers: draft-6, docs_url: 'https://example.com', retry_jitter: 20% }
gateway:
  listen: 127.0.0.1:8080
  upstream: http://127.0.0.1:9000
  upstreams:
    reports: { servers: [http://127.0.0.1:9001, http://127.0.0.1:9002], match: /reports/*, protocol: http2, workers: 50, max_connections: 100, max_queue: 50, health: { path: /healthz, every: 5s, timeout: 2s } }
    search: { servers: https://127.0.0.1:9003, match: [GET /search], health: /healthz, ca: ca.pem }
  tls: { certificate: server.pem, key: server.key, client_ca: ca.pem }
  proxy_protocol: yes
  encoded_slashes: yes
  allow_trace: yes
  add_headers: [x-real-ip, via]
  max_upstream_connections: 500
  max_upstream_queue: 0
  timeouts: { head: 10s, body: 30s, connect: 3s, queue: 3s, answer: 60s, whole: 1h, idle: 75s, notice: 5s, drain: 30s }
  max_head: 64KB
  max_body: 10MB
  min_rate: 1KB
  access_log: stdout
  log: refused
  log_addresses: full
admin: { listen: 127.0.0.1:8083 }
";

/// Names of all fields that the schema knows.
fn fields(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get("properties") {
                names.extend(properties.keys().cloned());
            }
            map.values().for_each(|value| fields(value, names));
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

fn field_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    fields(&schema(), &mut names);
    assert!(names.len() > 60, "{}", names.len());
    names
}

#[test]
fn the_schema_is_printed_and_is_one() {
    let (code, out, err) = told(&tollgate(Path::new("/")).arg("--schema").output().unwrap());
    assert_eq!((code, err.as_str()), (0, ""));
    let printed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(printed, schema());
    jsonschema::meta::validate(&printed).unwrap();
    assert_eq!(
        tollgate(Path::new("/")).args(["--schema", "a.yaml"]).output().unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn the_schema_takes_every_example_and_every_field() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    Policy::read(EVERYTHING).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    for (name, text) in examples().into_iter().chain([("everything".to_owned(), EVERYTHING.to_owned())]) {
        let json = to_json(&text);
        let problems: Vec<_> =
            validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(problems.is_empty(), "{name}: {problems:#?}");
        // JSON is YAML.
        assert!(Policy::read(&json.to_string()).is_ok(), "{name}");
    }
    for name in field_names()
        .iter()
        .filter(|name| !["key_file", "secret_env", "latency", "response_header"].contains(&name.as_str()))
    {
        assert!(EVERYTHING.contains(&format!("{name}:")), "{name} is missing in EVERYTHING");
    }
}

/// Every map of a policy, with a field that nobody knows.
fn spoiled(value: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match value {
        Value::Object(map) => {
            let mut more = map.clone();
            more.insert("qqqqq".to_owned(), json!("x"));
            all.push(more.into());
            for (name, inner) in map {
                for inner in spoiled(inner) {
                    let mut other = map.clone();
                    other.insert(name.clone(), inner);
                    all.push(other.into());
                }
            }
        }
        Value::Array(list) => {
            for (at, inner) in list.iter().enumerate() {
                for inner in spoiled(inner) {
                    let mut other = list.clone();
                    other[at] = inner;
                    all.push(other.into());
                }
            }
        }
        _ => {}
    }
    all
}

#[test]
fn the_schema_refuses_unknown_fields_wherever_the_reader_does() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let mut refused = 0;
    for policy in spoiled(&to_json(EVERYTHING)) {
        let Err(mistakes) = Policy::read(&policy.to_string()) else { continue };
        let is_unknown = |message: &str| {
            message.contains("there is no field") || message.contains("there is no condition")
        };
        if mistakes.errors().any(|mistake| is_unknown(&mistake.message)) {
            refused += 1;
            assert!(!validator.is_valid(&policy), "{mistakes}");
        }
    }
    assert!(refused > 35, "{refused}");
}

#[test]
fn the_schema_and_the_reader_agree_on_what_may_stand_where() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let limiter = |text: &str| format!("limiters: {{ a: {text} }}");
    let cases = [
        (limiter("{ rate: 50/s }"), true),
        (limiter("{ rate: 50 }"), false),
        (limiter("{ rate: fast }"), false),
        (limiter("{ rate: 5/fortnight }"), false),
        (limiter("{ rate: -5/s }"), false),
        (limiter("{ rate: [] }"), false),
        (limiter("{ rate: 5/s, burst: lots }"), false),
        (limiter("{ rate: 5/s, algorithm: leakybucket }"), false),
        (limiter("{ rate: 5/s, per: user }"), false),
        (limiter("{ rate: 5/s, per: [] }"), false),
        (limiter("{ rate: 5/s, match: [] }"), false),
        (limiter("{ rate: 5/s, match: [GET] }"), false),
        (limiter("{ rate: 5/s, match: [{ network: home }] }"), false),
        (limiter("{ rate: 5/s, mode: on }"), false),
        (limiter("{ rate: 5/s, sample: 10 }"), false),
        (limiter("{ rate: 5/s, on_store_failure: shut }"), false),
        (limiter("{ rate: 5/s, cost: { header: [a] } }"), false),
        (limiter("{ rate: 5/s, candidate: [] }"), false),
        (limiter("{ concurrency: many }"), false),
        (limiter("{ concurrency: 5, lease: 60 }"), false),
        (limiter("{ fleet: 5, reserve: 20 }"), false),
        (limiter("{ workers: { source: gpu } }"), false),
        (limiter("{ workers: [] }"), false),
        (limiter("[]"), false),
        (limiter("{ rate: 0/s }"), false),
        (limiter("{ rate: 5/0s }"), false),
        (limiter("{ rate: 0_10/s }"), true),
        (limiter("{ rate: _1/s }"), false),
        (limiter("{ rate: 1_/s }"), false),
        (limiter("{ rate: 5/s, burst: 0 }"), false),
        (limiter("{ rate: 5/s, match: {} }"), false),
        (limiter("{ rate: 5/s, candidate: [4/s, { rate: 50/h, burst: 9 }] }"), true),
        (limiter("{ concurrency: 5, lease: 1_s }"), false),
        (limiter("{ workers: { every: 50ms } }"), false),
        (limiter("{ workers: { every: 0_99ms } }"), false),
        (limiter("{ workers: { every: 1_00ms } }"), true),
        (limiter("{ workers: { every: 1s } }"), true),
        (format!("{}\noverrides: {{ k: {{ a: [9/s, 90/h] }} }}", limiter("{ rate: 5/s }")), true),
        ("limiters: {}\nplans: { a: { rate: 5/s, burst: 0 } }".to_owned(), false),
        ("limiters: {}\nplans: { a: { rate: plan } }".to_owned(), false),
        (limiter("{ rate: 5/s, concurrency: 5 }"), false),
        (limiter("{ per: caller }"), false),
        (limiter("{ rate: 5/s, candidate: 0/s }"), false),
        (limiter("{ rate: 5/s, cost: 0 }"), false),
        (limiter("{ rate: 5/s, cost: given }"), true),
        (limiter("{ rate: 5/s, cost: { otherwise: 5 } }"), false),
        (limiter("{ rate: 5/s, cost: { header: x, max: 0 } }"), false),
        (limiter("{ rate: 5/s, cost: { header: x y } }"), false),
        (limiter("{ rate: 5/s, per: { header: x y } }"), false),
        (limiter("{ rate: 5/s, match: [header x(y): z] }"), false),
        (limiter("{ rate: 5/s, sample: 200% }"), false),
        (limiter("{ rate: 5/s, sample: 100.01% }"), false),
        (limiter("{ rate: 5/s, sample: 100.0% }"), true),
        (limiter("{ rate: 5/s, sample: 0.5% }"), true),
        (limiter("{ concurrency: 0 }"), false),
        (limiter("{ concurrency: 5, lease: 0s }"), false),
        (limiter("{ fleet: 0 }"), false),
        (limiter("{ fleet: 99999999999 }"), false),
        (limiter("{ workers: { source: { in_flight: 0 } } }"), false),
        (limiter("{ workers: { source: { latency: 0s } } }"), false),
        ("limiters: {}\ntrusted_hops: 0".to_owned(), false),
        ("limiters: {}\ntrusted_hops: 33".to_owned(), false),
        ("limiters: {}\nidentify: { ipv6_prefix: 8 }".to_owned(), false),
        ("limiters: {}\nidentify: { caller: [{ header: a, cookie: b }] }".to_owned(), false),
        ("limiters: {}\nidentify: { caller: [header: a b] }".to_owned(), false),
        ("limiters: {}\nanswers: { docs_url: example.com }".to_owned(), false),
        ("limiters: {}\ngateway: { timeout: 0s }".to_owned(), false),
        ("limiters: {}\ngateway: { timeouts: { drain: 0s } }".to_owned(), true),
        ("limiters: {}\nclasses: { a: { path: /a } }".to_owned(), true),
        ("limiters: {}\nclasses: { a: 5 }".to_owned(), false),
        ("limiters: []".to_owned(), false),
        ("limiters: {}\nplans: { a: 50/s }".to_owned(), false),
        ("limiters: {}\ntrusted_proxies: 10.0.0.0/8".to_owned(), false),
        ("limiters: {}\ntrusted_proxies: [localhost]".to_owned(), false),
        ("limiters: {}\nidentify: { caller: [] }".to_owned(), false),
        ("limiters: {}\nidentify: { caller: user }".to_owned(), false),
        ("limiters: {}\nanswers: { headers: fancy }".to_owned(), false),
        ("limiters: {}\ngateway: { timeout: 60 }".to_owned(), false),
        ("store: memory".to_owned(), false),
    ];
    for (text, is_good) in cases {
        assert_eq!(Policy::read(&text).is_ok(), is_good, "the reader: {text}");
        assert_eq!(validator.is_valid(&to_json(&text)), is_good, "the schema: {text}");
    }
    // Which addresses are good, the store knows.
    for (store, is_good) in
        [("foo", false), ("{ url: foo }", false), ("memory", true), ("redis+unix:/run/r", true)]
    {
        let text = format!("limiters: {{}}\nstore: {store}");
        assert_eq!(validator.is_valid(&to_json(&text)), is_good, "the schema: {text}");
    }
}

#[test]
fn the_reference_tells_of_every_field() {
    let reference = fs::read_to_string(root().join("docs/policy.md")).unwrap();
    for name in field_names() {
        assert!(reference.contains(&format!("`{name}`")), "docs/policy.md does not tell of `{name}`");
    }
    // Its examples are such as one could copy.
    let blocks = reference.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut count = 0;
    for block in blocks {
        count += 1;
        let text =
            if block.contains("limiters:") { block.to_owned() } else { format!("{block}\nlimiters: {{}}\n") };
        Policy::read(&text).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}"));
    }
    assert!(count >= 8, "{count}");
}

/// Found by a reader: `check` had nothing against files with which the gateway does not start.
#[test]
fn certificates_and_keys_of_no_use_are_told() {
    let folder = std::env::temp_dir().join(format!("tollgate-check-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("junk.pem"), "junk\n").unwrap();
    for (policy, part) in [
        (
            "gateway: { upstream: http://a:1, tls: { certificate: junk.pem, key: junk.pem } }\nlimiters: {}\n",
            "junk.pem: certificates cannot be read (PEM)",
        ),
        (
            "gateway: { upstreams: { a: { servers: [https://a:1], ca: junk.pem } } }\nlimiters: {}\n",
            "junk.pem: certificates cannot be read (PEM)",
        ),
        (
            "identify: { caller: [jwt: sub], jwt: { jwks_file: junk.pem } }\nlimiters: { a: { rate: 5/s } }\n",
            "junk.pem",
        ),
    ] {
        std::fs::write(folder.join("tollgate.yaml"), policy).unwrap();
        let (code, out, err) = told(&tollgate(&folder).arg("tollgate.yaml").output().unwrap());
        assert_eq!(code, 1, "{policy}{out}{err}");
        assert!(err.contains(part), "{policy}{err}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Found by a reader: to editors `yes` and `true` are the same, and the schema took only one of them.
#[test]
fn the_schema_takes_truth_for_a_word() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for truth in ["true", "false", "'yes'", "'on'"] {
        let text = format!("gateway: {{ upstream: http://a:1, proxy_protocol: {truth} }}\nlimiters: {{}}\n");
        assert!(Policy::read(&text).is_ok(), "{text}");
        let problems: Vec<String> =
            validator.iter_errors(&to_json(&text)).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{text}{problems:?}");
    }
}
