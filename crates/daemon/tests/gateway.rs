//! The gateway, from outside: the real binary over real sockets, with a real server behind it.

use tollgate_testkit::Tollgate;
use tollgate_testkit::cases::CASES;
use tollgate_testkit::http::{Client, Upstream};

const BINARY: &str = env!("CARGO_BIN_EXE_tollgate");

/// A gateway in front of a server.
fn gateway(policy: &str, upstream: &Upstream) -> Tollgate {
    Tollgate::start(BINARY, policy, &["--upstream", &upstream.url()])
}

#[test]
fn the_table_of_cases_gets_its_answers_through_the_gateway() {
    let upstream = Upstream::hello();
    for case in CASES {
        let tollgate = gateway(case.policy, &upstream);
        let mut client = tollgate.client();
        for (number, asked) in case.requests.iter().enumerate() {
            for time in 0..asked.times {
                let answer = client.ask(asked.method, asked.target, asked.headers, b"");
                let which = format!("{}, request {number}, time {time}: {}", case.name, answer.text());
                assert_eq!(answer.status, asked.status, "{which}");
                if asked.status != 200 {
                    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect(&which);
                    assert_eq!(body["limiter"], asked.limiter, "{which}");
                }
                if !asked.retry_after.is_empty() {
                    assert_eq!(answer.header("retry-after"), asked.retry_after, "{which}");
                }
                if answer.header("connection") == "close" {
                    client = Client::connect(tollgate.gateway);
                }
            }
        }
    }
}
