//! The lists of requests and responses.

/// A line of a list.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Of a response: whether the server closes the connection behind it.
    pub(super) closes: bool,
}

pub(super) fn requests() -> Vec<Case> {
    lines("requests.txt", |name, rest| Case { name, bytes: unescape(rest), closes: false })
}

pub(super) fn responses() -> Vec<Case> {
    lines("responses.txt", |name, rest| {
        let (end, bytes) = rest.split_once("  ").unwrap_or((rest, ""));
        assert!(matches!(end, "keep" | "close"), "{name}: keep or close, not {end}");
        Case { name, bytes: unescape(bytes), closes: end == "close" }
    })
}

fn lines(file: &str, case: impl Fn(String, &str) -> Case) -> Vec<Case> {
    let path = format!("{}/tests/differential/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let is_case = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let split = |line: &'_ str| {
        let (name, rest) = line.split_once("  ").unwrap_or_else(|| panic!("no bytes: {line}"));
        case(name.to_owned(), rest)
    };
    text.lines().filter(is_case).map(split).collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((plain, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let (kind, behind) = escape.split_at(1);
        rest = behind;
        match kind {
            "r" => bytes.push(b'\r'),
            "n" => bytes.push(b'\n'),
            "t" => bytes.push(b'\t'),
            "\\" => bytes.push(b'\\'),
            "x" => {
                let (digits, behind) = rest.split_at(2);
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = behind;
            }
            "{" => {
                let (repeat, behind) = rest.split_once('}').unwrap();
                let (letter, count) = repeat.split_once('*').unwrap();
                bytes.extend(letter.as_bytes().repeat(count.parse().unwrap()));
                rest = behind;
            }
            other => panic!("unknown escape \\{other} in {text}"),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}
