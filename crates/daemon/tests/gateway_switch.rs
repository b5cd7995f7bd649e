//! `tollgate switch` and `tollgate status` with a gateway at work.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::common::{BINARY, command, gateway};
use tollgate_testkit::http::Upstream;
use tollgate_testkit::{Tollgate, free_port};

const POLICY: &str = "limiters: { one: { rate: 1/h, per: global }, two: { concurrency: 5, per: global } }\n";

fn switch(tollgate: &Tollgate, words: &[&str]) -> (String, Option<i32>) {
    let admin = tollgate.admin.to_string();
    command(&[&["switch", "--admin", &admin], words].concat())
}

fn statuses(tollgate: &Tollgate) -> [u16; 3] {
    [(); 3].map(|()| tollgate.get("/", &[]).status)
}

#[test]
fn a_limiter_in_the_dark_refuses_nobody_until_the_policy_says_so_again() {
    let upstream = Upstream::hello();
    let tollgate = gateway(POLICY, &upstream);
    assert_eq!(statuses(&tollgate), [200, 429, 429]);
    assert_eq!(switch(&tollgate, &["one", "dark"]), ("one: dark\n".to_owned(), Some(0)));
    assert_eq!(statuses(&tollgate), [200; 3]);
    let (shown, code) = command(&["status", "--admin", &tollgate.admin.to_string()]);
    let line = shown.lines().find(|line| line.trim_start().starts_with("one ")).unwrap();
    assert!(line.contains("dark") && line.contains("2 refused, 3 would be, set by hand"), "{shown}");
    assert_eq!(shown.matches("by hand").count(), 1, "{shown}");
    assert_eq!(code, Some(0));
    assert_eq!(switch(&tollgate, &["one", "policy"]), ("one: as the policy says\n".to_owned(), Some(0)));
    let (shown, _) = command(&["status", "--admin", &tollgate.admin.to_string()]);
    assert!(!shown.contains("by hand"), "{shown}");
    assert_eq!(statuses(&tollgate), [429; 3]);
}

#[test]
fn all_limiters_can_be_switched_off_at_once() {
    let upstream = Upstream::hello();
    let tollgate = gateway(POLICY, &upstream);
    assert_eq!(statuses(&tollgate), [200, 429, 429]);
    assert_eq!(switch(&tollgate, &["--all", "off"]), ("all limiters: off\n".to_owned(), Some(0)));
    assert_eq!(statuses(&tollgate), [200; 3]);
    let (shown, _) = command(&["status", "--admin", &tollgate.admin.to_string()]);
    assert!(shown.contains("off: no limiter is stricter, set by hand"), "{shown}");
    assert_eq!(switch(&tollgate, &["--all", "policy"]).1, Some(0));
    assert_eq!(statuses(&tollgate), [429; 3]);
}

#[test]
fn a_switch_that_still_holds_is_told_of_when_another_is_taken_back() {
    let upstream = Upstream::hello();
    let tollgate = gateway(POLICY, &upstream);
    assert_eq!(switch(&tollgate, &["one", "dark"]).1, Some(0));
    let (shown, _) = switch(&tollgate, &["--all", "policy"]);
    let told = "  one is still dark by its own switch: tollgate switch one policy\n";
    assert_eq!(shown, format!("all limiters: as the policy says\n{told}"));
    assert_eq!(switch(&tollgate, &["--all", "off"]).1, Some(0));
    let (shown, _) = switch(&tollgate, &["one", "policy"]);
    let told = "  all limiters are switched to off: tollgate switch --all policy\n";
    assert_eq!(shown, format!("one: as the policy says\n{told}"));
    let (shown, _) = switch(&tollgate, &["--all", "policy"]);
    assert_eq!(shown, "all limiters: as the policy says\n");
}

#[test]
fn in_the_dark_the_metrics_tell_whom_the_block_list_would_have_refused() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("block: [127.0.0.0/8]\ntrusted_proxies: []\n{POLICY}"), &upstream);
    assert_eq!(statuses(&tollgate), [403; 3]);
    assert_eq!(switch(&tollgate, &["--all", "dark"]).1, Some(0));
    assert_eq!(statuses(&tollgate), [200; 3]);
    let metrics = ["tollgate_blocked_by_list_total", "tollgate_would_block_by_list_total"];
    assert_eq!(metrics.map(|name| tollgate.metric(name)), [3.0; 2]);
}

#[test]
fn a_switch_outlives_a_reload() {
    let upstream = Upstream::hello();
    let tollgate = gateway(POLICY, &upstream);
    assert_eq!(switch(&tollgate, &["one", "off"]).1, Some(0));
    tollgate.signal("HUP");
    tollgate.says("the policy was loaded");
    assert_eq!(statuses(&tollgate), [200; 3]);
}

#[test]
fn what_cannot_be_switched_is_told() {
    let upstream = Upstream::hello();
    let tollgate = gateway(POLICY, &upstream);
    for (words, part) in [
        (&["three", "dark"][..], "there is no limiter \"three\": there are one, two"),
        (&["one", "dim"], "\"dim\" is no mode: there are enforce, dark, off, and policy"),
        (&["one"], "which limiter, and which mode?"),
        (&["--all", "one", "dark"], "--all is for all of them"),
        (&["on/e", "dark"], "is no name of a limiter"),
    ] {
        let (said, code) = switch(&tollgate, words);
        assert!(said.starts_with("error: ") && said.contains(part), "{words:?}: {said}");
        assert_eq!(code, Some(2), "{words:?}");
    }
    assert_eq!(statuses(&tollgate), [200, 429, 429]);
}

#[test]
fn who_has_not_the_token_switches_nothing() {
    let upstream = Upstream::hello();
    let flags = ["--upstream", &upstream.url(), "--token", "the-right-token"];
    let tollgate = Tollgate::start(crate::common::BINARY, POLICY, &flags);
    let wrong = ["one", "off", "--token", "the-wrong-token"];
    for (words, told) in [
        (&wrong[..2], "wants its token: say --token, or set TOLLGATE_TOKEN"),
        (&wrong, "has another token than this one"),
    ] {
        let (said, code) = switch(&tollgate, words);
        assert!(said.contains(told), "{said}");
        assert_eq!(code, Some(2));
    }
    assert_eq!(statuses(&tollgate), [200, 429, 429]);
    assert_eq!(switch(&tollgate, &["one", "off", "--token", "the-right-token"]).1, Some(0));
    assert_eq!(statuses(&tollgate), [200; 3]);
}

#[test]
fn an_instance_that_is_not_there_is_told() {
    let nobody = format!("127.0.0.1:{}", free_port());
    for words in [&["status"][..], &["switch", "one", "dark"]] {
        let (said, code) = command(&[words, &["--admin", &nobody]].concat());
        assert!(
            said.contains(&format!("nobody answers at {nobody} (--admin): is `tollgate run` at work")),
            "{said}"
        );
        assert_eq!(code, Some(2));
    }
    let upstream = Upstream::start(|_, stream| {
        std::io::Write::write_all(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok()
    });
    let (said, code) = command(&["status", "--admin", &upstream.address.to_string()]);
    assert!(said.contains("is no admin door of a Tollgate: it answered 200"), "{said}");
    assert_eq!(code, Some(2));
    // Nor is anybody who speaks JSON. Found by a reader: the door of the gateway was taken for it, and said that all was off.
    let upstream = Upstream::start(|_, stream| {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        let _ = std::io::Write::write_all(stream, answer);
        false
    });
    let address = upstream.address.to_string();
    for words in [&["status"][..], &["switch", "one", "dark"], &["switch", "--all", "off"]] {
        let (said, code) = command(&[words, &["--admin", &address]].concat());
        assert!(
            said.contains(&format!("{address} is no admin door of a Tollgate, whatever it is")),
            "{said}"
        );
        assert_eq!(code, Some(2), "{words:?}");
    }
    assert!(
        upstream.received().iter().all(|request| request.line.starts_with("GET ")),
        "nobody else is told to switch"
    );
    let (said, code) = command(&["status", "--admin", "localhost"]);
    assert!(said.contains("\"localhost\" is no address: write --admin 127.0.0.1:8083"), "{said}");
    assert_eq!(code, Some(2));
}

/// `status` and `switch` asked 127.0.0.1:8083 unless they were told otherwise, wherever the policy put the admin endpoint.
#[test]
fn status_and_switch_find_the_admin_endpoint_in_the_policy_file() {
    let upstream = Upstream::hello();
    let tollgate = gateway(POLICY, &upstream);
    let run = |policy: &str, words: &[&str]| {
        std::fs::write(tollgate.folder().join("other.yaml"), policy).unwrap();
        let mut command = std::process::Command::new(BINARY);
        command.args(words).current_dir(tollgate.folder()).env("TOLLGATE_POLICY", "other.yaml");
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&text).into_owned(), output.status.code())
    };
    let port = tollgate.admin.port();
    for listen in [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}")] {
        let policy = format!("admin: {{ listen: '{listen}' }}\n{POLICY}");
        let (shown, code) = run(&policy, &["status"]);
        assert!(code == Some(0) && shown.contains("  one "), "{listen}: {shown}");
    }
    // A file with a mistake still says where the endpoint is.
    let broken = format!("admin: {{ listen: '127.0.0.1:{port}' }}\nlimiters: {{ one: {{ rat: 1/h }} }}\n");
    assert_eq!(run(&broken, &["switch", "one", "dark"]), ("one: dark\n".to_owned(), Some(0)));
    let (shown, code) = run("admin: { listen: off }\nlimiters: {}\n", &["status"]);
    assert!(code == Some(2) && shown.contains("`admin.listen` of other.yaml is off"), "{shown}");
    let closed = format!("127.0.0.1:{}", free_port());
    let (shown, _) = run(&format!("admin: {{ listen: '{closed}' }}\nlimiters: {{}}\n"), &["status"]);
    let told = format!("nobody answers at {closed} (`admin.listen` of other.yaml)");
    assert!(shown.contains(&told), "{shown}");
    let (shown, _) = run("admin: { listen: off }\nlimiters: {}\n", &["status", "--admin", &closed]);
    assert!(shown.contains(&format!("nobody answers at {closed} (--admin)")), "{shown}");
}

/// The usage line demanded a command, and without one `tollgate` ran the gateway.
#[test]
fn the_usage_line_says_what_tollgate_without_a_command_does() {
    let (shown, code) = command(&["--help"]);
    assert_eq!(code, Some(0));
    let usage = "Usage: tollgate [run] [OPTIONS]\n       tollgate <COMMAND> [OPTIONS]\n";
    assert!(shown.contains(usage), "{shown}");
}
