//! Paths that a server takes for the same have one normal form, and patterns match that form.

#![cfg(feature = "policy")]
#![allow(clippy::panic, reason = "a test that cannot set itself up fails")]

use std::borrow::Cow;

use crate::common::config;
use proptest::prelude::*;
use tollgate_core::policy::path::{PathPattern, normal};

fn pattern(text: &str) -> PathPattern {
    PathPattern::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_spelling_of_a_path_is_one_path() {
    for (path, expected) in [
        ("/A", "/A"),
        ("/a", "/a"),
        ("/a/", "/a"),
        ("/a//", "/a"),
        ("//a", "/a"),
        ("///a///b", "/a/b"),
        ("/./a", "/a"),
        ("/a/.", "/a"),
        ("/a/./b", "/a/b"),
        ("/a/..", "/"),
        ("/a/../b", "/b"),
        ("/a/b/../../..", "/"),
        ("/../../a", "/a"),
        ("/a//../b", "/b"),
        ("/...", "/..."),
        ("/.a", "/.a"),
        ("/..a", "/..a"),
        ("/a..", "/a.."),
        ("/%61", "/a"),
        ("/%41", "/A"),
        ("/%7Ea", "/~a"),
        ("/a;x", "/a"),
        ("/a;x=1;y=2/b;z", "/a/b"),
        ("/;x/a", "/a"),
        ("/a%3Bx", "/a%3Bx"),
        ("/x/%2e%2e/a", "/a"),
        ("/x/.%2E/a", "/a"),
        ("/x/%2e/a", "/x/a"),
        ("/x/..;y/a", "/a"),
        ("/x/%2e%2e;y/a", "/a"),
        ("/%252e", "/%252e"),
        ("/%252E%252e", "/%252E%252e"),
        ("/%25%32%65", "/%252e"),
        ("/%2f", "/%2F"),
        ("/x/..%2fa", "/x/..%2Fa"),
        ("/a\0", "/a%00"),
        ("/a%00", "/a%00"),
        ("/a\n\u{7f}", "/a%0A%7F"),
        ("/a b", "/a%20b"),
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a\\b", "/a\\b"),
        ("/a%5cb", "/a%5Cb"),
        ("/%", "/%25"),
        ("/%4", "/%254"),
        ("/%zz", "/%25zz"),
        ("/%%411", "/%25A1"),
        ("/%+1", "/%25+1"),
        ("/v1/items:batch,(x)!$&'*+=@", "/v1/items:batch,(x)!$&'*+=@"),
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        (".", "/"),
        ("..", "/"),
        ("a/b", "/a/b"),
        ("*", "/*"),
    ] {
        assert_eq!(normal(path), expected, "{path:?}");
    }
}

#[test]
fn a_path_in_normal_form_is_not_copied() {
    for path in
        ["/", "/a", "/a/b.c/d-e_f~g", "/a/...", "/%2F/%C3%A9", "/a\\b", "/.well-known/x", "/v1/items:batch"]
    {
        assert!(matches!(normal(path), Cow::Borrowed(same) if same == path), "{path}");
    }
}

#[test]
fn patterns_match() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("/", &["/"], &["/a"]),
        ("*", &["/", "/a", "/a/b"], &[]),
        ("/*", &["/", "/a", "/a/b"], &[]),
        ("/a", &["/a"], &["/", "/A", "/ab", "/a/b", "/b"]),
        ("/a/*", &["/a/b", "/a/b/c"], &["/", "/a", "/ab", "/ab/c", "/b/a"]),
        ("/a/*/", &["/a/b", "/a/b/c"], &["/a"]),
        ("/a/*/c", &["/a/b/c"], &["/a/c", "/a/b", "/a/b/c/d", "/a/b/b/c"]),
        ("/*/c", &["/b/c"], &["/c", "/b/b/c"]),
        ("/*/*", &["/a/b", "/a/b/c"], &["/", "/a"]),
        ("/a/{id}", &["/a/b", "/a/%2F"], &["/a", "/a/b/c"]),
        ("/{a}/{b-2}/*", &["/a/b/c", "/a/b/c/d"], &["/a/b"]),
        ("/a/v*", &["/a/v", "/a/v1"], &["/a", "/a/w", "/a/v1/b"]),
        ("/v*/b", &["/v/b", "/v1/b"], &["/v1", "/v1/c", "/w/b"]),
        ("/v*/*", &["/v1/b", "/v1/b/c"], &["/v1"]),
        ("//a/./x/../%62/", &["/a/b"], &["/a/x/b"]),
        ("/caf\u{e9}", &["/caf%C3%A9"], &["/cafe"]),
        ("/caf\u{e9}*", &["/caf%C3%A9s"], &["/caf%C3"]),
        ("/a%2fb", &["/a%2Fb"], &["/a/b"]),
    ];
    for (text, yes, no) in cases {
        let pattern = pattern(text);
        assert_eq!(pattern.as_str(), *text);
        yes.iter().for_each(|path| assert!(pattern.matches(path), "{text} {path}"));
        no.iter().for_each(|path| assert!(!pattern.matches(path), "{text} {path}"));
    }
}

#[test]
fn case_is_ignored_if_asked() {
    let pattern = pattern("/Login/v*/x").ignoring_case();
    assert!(pattern.matches("/login/V2/X"));
    assert!(!pattern.matches("/login/W2/X"));
    assert_eq!(pattern.as_str(), "/Login/v*/x");
}

#[test]
fn mistakes_say_what_would_be_right() {
    for (text, right) in [
        ("", "write `/`"),
        ("login", "write `/login`"),
        ("*/a", "write `/*/a`"),
        ("/a/**", "`/a/*`"),
        ("/**/a", "`/*/a`"),
        ("/a**", "`/a*`"),
        ("/a*b", "end of a segment"),
        ("/*b", "end of a segment"),
        ("/a/{id", "write `{id}`"),
        ("/a/id}", "write `{id}`"),
        ("/{a/b}", "write `{id}`"),
        ("/{}", "write `{id}`"),
        ("/a{b}", "fill their segment"),
        ("/{a}b", "fill their segment"),
        ("/{a}{b}", "fill their segment"),
        ("/{*rest}", "fill their segment"),
        ("/a?b=c", "write `/a`"),
        ("/a;v=1", "leave them out"),
    ] {
        let error = PathPattern::parse(text).unwrap_err();
        assert!(error.contains(right), "{text}: {error}");
    }
}

#[test]
fn a_wider_pattern_covers() {
    for (wide, narrow, back) in [
        ("*", "/", false),
        ("*", "/*", true),
        ("/*", "/a/*", false),
        ("/a", "/a/", true),
        ("/a/*", "/a/b", false),
        ("/a/*", "/a/b/*", false),
        ("/a/*", "/a/{id}", false),
        ("/a/*", "/*/x", false),
        ("/{id}", "/a", false),
        ("/{id}", "/*/../b", false),
        ("/v*", "/v1", false),
        ("/v*", "/v1*", false),
        ("/{a}/{b}", "/x/y*", false),
        ("/*/*", "/a/*", false),
        ("/{a}/*", "/*/*", true),
    ] {
        // Two that only overlap do not cover each other.
        let expected = (wide, narrow) != ("/a/*", "/*/x");
        assert_eq!(pattern(wide).covers(&pattern(narrow)), expected, "{wide} {narrow}");
        assert_eq!(pattern(narrow).covers(&pattern(wide)), back, "{narrow} {wide}");
    }
    assert!(!pattern("/{a}").covers(&pattern("/*")), "not what is below, nor the root");
    assert!(!pattern("/a").covers(&pattern("/a").ignoring_case()));
    assert!(pattern("/a").ignoring_case().covers(&pattern("/A")));
    assert!(pattern("/1/{x}").covers(&pattern("/1/a").ignoring_case()));
}

/// Strings of what is special in a path, and of anything.
fn path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec!["/", "/", "/", ".", "..", "%", "%2", "2e", "%2e", "%2F", "%25", ";", "\\", "a", "B", "1"])
            .prop_map(String::from),
        1 => any::<char>().prop_map(String::from),
        1 => "[\\x00-\\x7f]".prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

/// Patterns of few words, and paths that they often match.
fn any_pattern() -> impl Strategy<Value = PathPattern> {
    let part = prop::sample::select(vec!["a", "ab", "A", "b", "1", "a*", "ab*", "1*", "*", "{x}", ".", ".."]);
    (prop::collection::vec(part, 0..4), any::<bool>()).prop_map(|(parts, any_case)| {
        let pattern = pattern(&format!("/{}", parts.join("/")));
        if any_case { pattern.ignoring_case() } else { pattern }
    })
}

fn plain_path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "ab", "aB", "abc", "A", "b", "1", "12"]);
    prop::collection::vec(part, 0..5).prop_map(|parts| format!("/{}", parts.join("/")))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_normal_form_is_final(path in path()) {
        let once = normal(&path).into_owned();
        prop_assert!(matches!(normal(&once), Cow::Borrowed(same) if same == once), "{}", once);
        prop_assert!(once.is_ascii() && once.starts_with('/'));
        let segments: Vec<_> = once.split('/').skip(1).collect();
        prop_assert!(once == "/" || segments.iter().all(|segment| !["", ".", ".."].contains(segment)), "{}", once);
        prop_assert!(!once.contains(|char: char| char == ';' || char.is_ascii_control()));
    }

    #[test]
    fn what_is_not_copied_is_what_a_copy_would_be(path in path()) {
        if let Cow::Borrowed(same) = normal(&path) {
            // An empty segment in front makes it copy.
            let copied = normal(&format!("/{path}")).into_owned();
            prop_assert_eq!(copied, same);
        }
    }

    #[test]
    fn no_text_and_no_path_panics(text in path(), path in path()) {
        for text in [text.clone(), format!("/{text}"), format!("/{text}*"), format!("/{{{text}}}")] {
            if let Ok(pattern) = PathPattern::parse(&text) {
                pattern.matches(&path);
                pattern.matches(&normal(&path));
                prop_assert!(pattern.covers(&pattern));
            }
        }
    }

    #[test]
    fn a_literal_pattern_matches_its_own_path(path in path()) {
        let own = PathPattern::parse(&path).ok().filter(|_| !path.contains('*'));
        if let Some(pattern) = own.filter(|_| !path.contains(['{', '}'])) {
            prop_assert!(pattern.matches(&normal(&path)));
        }
    }

    #[test]
    fn what_covers_matches_no_less(wide in any_pattern(), narrow in any_pattern(), paths in prop::collection::vec(plain_path(), 32)) {
        if wide.covers(&narrow) {
            for path in paths {
                prop_assert!(!narrow.matches(&path) || wide.matches(&path), "{} {} {}", wide.as_str(), narrow.as_str(), path);
            }
        }
    }
}
