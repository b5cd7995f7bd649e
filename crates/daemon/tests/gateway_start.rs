//! How a gateway starts: who is asked first, and what is said when it cannot.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{BINARY, OPEN, gateway};
use tollgate_testkit::http::Upstream;
use tollgate_testkit::{Tollgate, free_port};

/// A folder that is gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(policy: Option<&str>) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tollgate-start-{}-{}", std::process::id(), free_port()));
        std::fs::create_dir_all(&folder).unwrap();
        if let Some(policy) = policy {
            std::fs::write(folder.join("tollgate.yaml"), policy).unwrap();
        }
        Self(folder)
    }

    fn command(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).envs(environment.iter().copied()).current_dir(&self.0).stdin(Stdio::null());
        command
    }

    /// What it says as it ends, which it must with 2.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments, &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// What it says as it begins, up to its admin door.
    fn begins(&self, arguments: &[&str], environment: &[(&str, &str)]) -> String {
        let mut process = self.command(arguments, environment).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        for line in BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok) {
            said += &line;
            said.push('\n');
            if line.starts_with("  admin ") {
                break;
            }
        }
        process.kill().unwrap();
        process.wait().unwrap();
        said
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn free() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn a_door_that_is_taken_is_named_with_its_flag() {
    let folder = Folder::new(Some(OPEN));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let upstream = ["--upstream", "http://127.0.0.1:1"];
    let said = folder.fails(&[&["--gateway", taken.as_str(), "--admin", "off"], &upstream[..]].concat());
    assert!(said.contains(&format!("{taken} is taken already: the gateway cannot listen there")), "{said}");
    assert!(said.contains("Move it with --gateway 127.0.0.1:"), "{said}");
    let said = folder.fails(&[&["--gateway", &free(), "--admin", taken.as_str()], &upstream[..]].concat());
    assert!(
        said.contains(&format!("{taken} is taken already: the admin door cannot listen there")),
        "{said}"
    );
    assert!(said.contains("or close it with --admin off"), "{said}");
}

#[test]
fn flags_that_make_no_sense_are_told_what_would() {
    let folder = Folder::new(Some(OPEN));
    let gateway = free();
    let own = format!("http://{gateway}");
    for (arguments, part) in [
        (&["--gateway", "8080"][..], "--gateway \"8080\" is no address: write --gateway 127.0.0.1:8080"),
        (
            &["--admin", "here"],
            "--admin \"here\" is no address: write --admin 127.0.0.1:8083, or --admin off",
        ),
        (
            &["--admin", "http://localhost:8083/metrics"],
            "--admin \"http://localhost:8083/metrics\" is a URL, and no address: write --admin localhost:8083, or --admin off",
        ),
        (&["--admin", &gateway], "the gateway and the admin door cannot both listen at"),
        (&["--upstream", "localhost:9000"], "write http://localhost:9000"),
        (&["--upstream", "http://localhost:9000/api"], "so write http://localhost:9000"),
        (&["--upstream", &own], "is the gateway itself"),
        (&["--upstream", &own.replace("127.0.0.1", "0.0.0.0")], "is the gateway itself"),
        (&["--store", "mysql://localhost"], "--store"),
        (&["--threads", "many"], "--threads"),
        (&["--nonsense"], "--nonsense"),
        (&["--token", "short"], "the admin token is too short"),
        (&[], "whom shall requests be passed on to? Say --upstream"),
    ] {
        let defaults = [("--gateway", gateway.as_str()), ("--admin", "off")];
        let defaults = defaults.iter().filter(|(flag, _)| !arguments.contains(flag));
        let mut all: Vec<&str> = defaults.flat_map(|(flag, value)| [*flag, *value]).collect();
        all.insert(0, "run");
        all.extend(arguments);
        let said = folder.fails(&all);
        assert!(said.starts_with("error: ") && said.contains(part), "{arguments:?}: {said}");
    }
}

#[test]
fn localhost_is_an_address_for_doors_and_for_those_who_ask_there() {
    let upstream = Upstream::hello();
    let folder = Folder::new(Some(OPEN));
    let [gateway, admin] = [(); 2].map(|()| format!("localhost:{}", free_port()));
    let flags = ["--gateway", &gateway, "--admin", &admin, "--upstream", &upstream.url()];
    let said = folder.begins(&flags, &[]);
    assert!(said.contains(&format!("http://{}\n", gateway.replace("localhost", "127.0.0.1"))), "{said}");
    let said = folder.fails(&["status", "--admin", "http://localhost:8083"]);
    assert!(said.contains("is a URL, and no address: write --admin localhost:8083"), "{said}");
    let said = folder.fails(&["status", "--admin", &admin]);
    assert!(said.contains("nobody answers at 127.0.0.1:"), "{said}");
}

#[test]
fn a_server_whose_host_is_not_known_is_told_at_once() {
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", "http://no-such-host.invalid:9000"]);
    tollgate.says("the host of this server is not known");
    assert_eq!(tollgate.get("/", &[]).status, 502);
}

#[test]
fn an_admin_door_for_everybody_wants_a_token() {
    let folder = Folder::new(Some(OPEN));
    let admin = format!("0.0.0.0:{}", free_port());
    let said = folder.fails(&["--gateway", &free(), "--upstream", "http://127.0.0.1:1", "--admin", &admin]);
    assert!(said.contains("set TOLLGATE_TOKEN") && said.contains("switch limiters off"), "{said}");
}

#[test]
fn a_policy_of_no_use_starts_open_and_loud_and_is_loaded_when_mended() {
    let upstream = Upstream::hello();
    let tollgate = gateway("limiters: { one: { rate: many } }\n", &upstream);
    tollgate.says("THE POLICY IS OF NO USE: everything passes");
    let place = tollgate.says("tollgate.yaml:1:");
    assert!(place.contains("1:"), "{place}");
    assert_eq!([(); 3].map(|()| tollgate.get("/", &[]).status), [200; 3]);
    let ready = tollgate.ask_admin("GET", "/readyz", "");
    let told =
        "ready, degraded: the policy file was not loaded, there is no limiter, and everything passes\n";
    assert_eq!((ready.status, ready.text().as_str()), (200, told));
    tollgate.write_policy("limiters: { one: { rate: 1/h, per: global } }\n");
    tollgate_testkit::wait_until("it is loaded", || tollgate.get("/", &[]).status == 429);
    // Whoever watches the file has not told it a second time.
    let told = tollgate.said().iter().filter(|line| line.contains("tollgate.yaml:1:")).count();
    assert_eq!(told, 1, "{:?}", tollgate.said());
}

#[test]
fn a_policy_file_that_is_not_there_starts_open_and_loud() {
    let upstream = Upstream::hello();
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream.url()]);
    let folder = Folder::new(None);
    let said = folder.begins(
        &[
            "--policy",
            "missing.yaml",
            "--upstream",
            &upstream.url(),
            "--gateway",
            &free(),
            "--admin",
            &free(),
        ],
        &[],
    );
    assert!(said.contains("missing.yaml") && said.contains("THE POLICY IS OF NO USE"), "{said}");
    assert_eq!(tollgate.get("/", &[]).status, 200);
}

#[test]
fn a_flag_goes_before_the_environment_and_that_before_the_policy() {
    let [policy, environment, flag] = [(); 3].map(|()| free());
    let folder = Folder::new(Some(&format!(
        "gateway: {{ listen: '{policy}', upstream: 'http://127.0.0.1:1' }}\nlimiters: {{}}\n"
    )));
    let admin = free();
    let variables = [("TOLLGATE_GATEWAY", environment.as_str()), ("TOLLGATE_UPSTREAM", "http://127.0.0.1:2")];
    let flags = ["--admin", &admin, "--gateway", &flag, "--upstream", "http://127.0.0.1:3"];
    for (flags, variables, address, upstream) in [
        (&flags[..2], &variables[..0], &policy, "http://127.0.0.1:1"),
        (&flags[..2], &variables[..], &environment, "http://127.0.0.1:2"),
        (&flags[..], &variables[..], &flag, "http://127.0.0.1:3"),
    ] {
        let said = folder.begins(flags, variables);
        assert!(said.contains(&format!("gateway   http://{address}\n")), "{said}");
        assert!(said.contains(&format!("upstream  default: {upstream}\n")), "{said}");
    }
}

#[test]
fn without_a_policy_and_an_upstream_there_is_a_demonstration() {
    let folder = Folder::new(None);
    let said = folder.begins(&["run", "--gateway", &free(), "--admin", &free()], &[]);
    assert!(said.contains("the demonstration's (examples/demo.yaml)"), "{said}");
    assert!(said.contains("(the demonstration's API)"), "{said}");
}

/// Found by a reader: variables that are set to nothing, as by `${X:-}` of a compose file, kept it from starting.
#[test]
fn variables_that_are_empty_say_nothing() {
    let folder = Folder::new(Some(OPEN));
    let empty = ["POLICY", "UPSTREAM", "TOKEN", "STORE", "THREADS", "ACCESS_LOG", "LOG", "SECRET"];
    let names = empty.map(|name| format!("TOLLGATE_{name}"));
    let environment: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let flags = ["--gateway", &free(), "--admin", &free(), "--upstream", "http://127.0.0.1:1"];
    let said = folder.begins(&flags, &environment);
    assert!(
        said.contains("  upstream  default: http://127.0.0.1:1\n") && said.contains("  admin "),
        "{said}"
    );
    let (gateway, admin) = (free(), free());
    let flags = ["--gateway", gateway.as_str(), "--upstream", "http://127.0.0.1:1"];
    let said = folder.begins(&flags, &[("TOLLGATE_GATEWAY", " "), ("TOLLGATE_ADMIN", &admin)]);
    assert!(said.contains(&gateway) && said.contains(&admin), "{said}");
}

/// Found by a reader: who had set a variable was told of a flag.
#[test]
fn what_a_variable_says_wrongly_is_blamed_on_the_variable() {
    let folder = Folder::new(Some(OPEN));
    for (name, flag, right) in [
        ("TOLLGATE_THREADS", "--threads", "write a number from 1 to 1024"),
        ("TOLLGATE_GATEWAY", "--gateway", "write --gateway 127.0.0.1:8080"),
        ("TOLLGATE_ADMIN", "--admin", "write --admin 127.0.0.1:8083"),
    ] {
        let output = folder.command(&["run"], &[(name, "nonsense")]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let note = format!("note: {flag} was not given; the variable {name} says it");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&note) && said.contains(right), "{said}");
        assert!(!folder.fails(&[flag, "nonsense"]).contains("note:"));
    }
}

#[test]
fn limiters_that_are_not_enforced_for_all_are_told() {
    let upstream = Upstream::hello();
    let tollgate =
        gateway("limiters: { one: { rate: 1/h, sample: 12.5% }, two: { rate: 1/h } }\n", &upstream);
    tollgate.says("one (429): ONLY FOR 12.5 % OF ITS BUCKETS");
    tollgate.says("two (429)");
}
