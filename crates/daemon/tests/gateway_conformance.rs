//! Other people's implementations against the gateway: HTTP/2 by python h2, WebSocket by python websockets, TLS by sslscan.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot set itself up fails"
)]

use std::net::SocketAddr;
use std::process::Command;

use tollgate_testkit::http::{Client, Upstream};
use tollgate_testkit::{Certificates, Program, Tollgate, run_script};

use crate::common::{BINARY, OPEN};

fn script(name: &str) -> String {
    format!("{}/tests/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs a client against the gateway: how much it has checked.
fn checked(client: &str, tollgate: &Tollgate) -> usize {
    run_script(&script(client), &[&tollgate.gateway.port().to_string()]).trim().parse().unwrap()
}

#[test]
fn python_h2_finds_no_violation_on_either_side_of_the_gateway() {
    let server = Program::start(&script("h2_server.py"), &[]);
    let policy = format!(
        "limiters: {{}}\ngateway: {{ upstreams: {{ all: {{ servers: 'http://{}', protocol: http2 }} }} }}\n",
        server.address()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    assert!(checked("h2_client.py", &tollgate) > 60);
    tollgate.comes_to_rest();
}

#[test]
fn websocket_frames_of_every_type_and_size_pass_unchanged() {
    let server = Program::start(&script("websocket_server.py"), &[]);
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &format!("http://{}", server.address())]);
    assert!(checked("websocket_client.py", &tollgate) > 60);
    tollgate.comes_to_rest();
}

#[test]
fn a_tls_scanner_finds_only_current_versions_and_ciphers() {
    let upstream = Upstream::hello();
    let policy = "limiters: {}\ngateway: { tls: { certificate: server.pem, key: server.key } }\n";
    let tollgate = Tollgate::start_in(BINARY, policy, &["--upstream", &upstream.url()], &[], |folder| {
        Certificates::write(folder);
    });
    let scanned = Command::new("sslscan")
        .args(["--no-colour", "--no-check-certificate", &tollgate.gateway.to_string()])
        .output()
        .expect("sslscan, which `make setup` installs");
    let report = String::from_utf8_lossy(&scanned.stdout).into_owned();
    for expected in [
        "SSLv2     disabled",
        "SSLv3     disabled",
        "TLSv1.0   disabled",
        "TLSv1.1   disabled",
        "TLSv1.2   enabled",
        "TLSv1.3   enabled",
        "Session renegotiation not supported",
        "TLSv1.3 not vulnerable to heartbleed",
        "TLSv1.2 not vulnerable to heartbleed",
    ] {
        assert!(report.contains(expected), "{expected:?} is missing:\n{report}");
    }
    let ciphers: Vec<&str> = report
        .lines()
        .filter(|line| line.starts_with("Accepted") || line.starts_with("Preferred"))
        .filter_map(|line| line.split_whitespace().nth(4))
        .collect();
    assert!(ciphers.len() >= 6, "{report}");
    // Forward secrecy and authenticated encryption, whichever version.
    let is_current = |cipher: &&str| {
        let has_forward_secrecy = cipher.starts_with("ECDHE-") || cipher.starts_with("TLS_");
        has_forward_secrecy && (cipher.contains("GCM") || cipher.contains("CHACHA20"))
    };
    let old: Vec<&&str> = ciphers.iter().filter(|cipher| !is_current(cipher)).collect();
    assert!(old.is_empty(), "{old:?}\n{report}");
    // Debian's scanner cannot test compression.
    assert_eq!(compression_chosen(tollgate.gateway), 0, "TLS compression leaks secrets (CRIME)");
}

/// Offers DEFLATE and no compression in a ClientHello of TLS 1.2: what the server chooses.
fn compression_chosen(server: SocketAddr) -> u8 {
    let extensions = [
        [0x00, 0x0a, 0, 4, 0, 2, 0x00, 0x1d].as_slice(), // group: X25519
        &[0x00, 0x0b, 0, 2, 1, 0],                       // points: uncompressed
        &[0x00, 0x0d, 0, 8, 0, 6, 0x04, 0x03, 0x08, 0x04, 0x04, 0x01], // signatures: ECDSA, RSA-PSS, RSA
        &[0x00, 0x17, 0, 0],                             // extended master secret
    ]
    .concat();
    let ciphers = [0xc0, 0x2b, 0xc0, 0x2f];
    let mut hello = [&[3, 3][..], &[7; 32], &[0, 0, ciphers.len() as u8], &ciphers, &[2, 1, 0, 0]].concat();
    hello.push(extensions.len() as u8);
    hello.extend(&extensions);
    let length = hello.len() as u8;
    let record = [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat();
    let mut client = Client::connect(server);
    client.send(record);
    let head = client.read_exactly(5);
    assert_eq!(head.first(), Some(&0x16), "a handshake, and not an alert: {head:?}");
    let answer = client.read_exactly(usize::from(u16::from_be_bytes([head[3], head[4]])));
    assert_eq!(answer.first(), Some(&2), "a ServerHello");
    // Behind type, length, version and random: the session, the cipher, and then the compression.
    answer[4 + 2 + 32 + 1 + usize::from(answer[4 + 2 + 32]) + 2]
}
