//! HTTP/1 with clients and with servers.
//!
//! Both sides of a request are driven by one task, that of its connection with the client: what a server sends is read where it
//! is needed, and no task is woken to hand it on. And there is one reader of heads, a strict one: what two readers could take
//! for different requests is none (`head.rs`).

mod client;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod head;
mod server;
mod wire;

pub(super) use self::client::{Answered, Exchange, ServerBody};
pub(super) use self::server::{Bounds, ClientBody, Connection, Ended};
pub(super) use self::wire::{Stream, Wire};

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::decode::{Decoder, Piece, Syntax};
    use super::head::{self, Length, Scan, Wrong};

    /// Reads requests that come in these pieces, and says of each how long its body is.
    fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Result<Vec<usize>, Wrong> {
        let (mut read, mut scan, mut bodies) = (BytesMut::new(), Scan::default(), Vec::new());
        let mut decoder = Decoder::new(Length::Exactly(0), Syntax::Strict);
        for piece in pieces {
            read.extend_from_slice(piece);
            loop {
                match decoder.next(&mut read)? {
                    Piece::Data(data) => *bodies.last_mut().unwrap() += data.len(),
                    Piece::Trailers(_) => {}
                    Piece::Awaited => break,
                    Piece::End => {
                        let Some(end) = scan.end(&read, true)? else { break };
                        scan = Scan::default();
                        let head = read.split_to(end).freeze();
                        if head.len() > 2 {
                            decoder = Decoder::new(head::request(&head)?.length, Syntax::Strict);
                            bodies.push(0);
                        }
                    }
                }
            }
        }
        Ok(bodies)
    }

    /// Whether it is let through, which does not depend on how it is cut into pieces.
    fn is_good(text: &str) -> bool {
        let whole = read([text.as_bytes()]);
        assert_eq!(read(text.as_bytes().chunks(1)).is_ok(), whole.is_ok(), "{text:?} byte by byte");
        for cut in 1..text.len() {
            let (start, end) = text.as_bytes().split_at(cut);
            assert_eq!(read([start, end]).is_ok(), whole.is_ok(), "{text:?} cut at {cut}");
            if whole.is_ok() {
                assert_eq!(read([start, end]), whole, "{text:?} cut at {cut}");
            }
        }
        whole.is_ok()
    }

    #[test]
    fn requests_that_all_read_alike_are_let_through() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\n\n\n\n\n\n\r\nA;x=y\r\n0123456789\r\n0\r\nx: y\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding:chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: \t chunked \t\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5 ;a=b\r\nhello\r\n0\t ;c\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-type: a\r\nte: trailers\r\ncontent-length-x: 7\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
        ] {
            assert!(is_good(text), "{text:?}");
        }
    }

    #[test]
    fn requests_that_could_be_read_differently_are_not() {
        for text in [
            "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding\t: chunked\r\n\r\n",
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5 5;a\r\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n ;a\r\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: , chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked,\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123456\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\n\r0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n x\r\n\r\n",
        ] {
            assert!(!is_good(text), "{text:?}");
        }
    }

    /// The body of an answer in chunks, and what is behind it. An error if it is no body, or has not come to its end.
    fn body_of_answer(pieces: &[&[u8]]) -> Result<(String, String), Wrong> {
        let (mut read, mut body) = (BytesMut::new(), Vec::new());
        let mut decoder = Decoder::new(Length::Chunked, Syntax::Lenient);
        for piece in pieces {
            read.extend_from_slice(piece);
            loop {
                match decoder.next(&mut read)? {
                    Piece::Data(data) => body.extend_from_slice(&data),
                    Piece::Trailers(trailers) => {
                        body.extend(trailers.keys().flat_map(|name| name.as_str().bytes()))
                    }
                    Piece::Awaited | Piece::End => break,
                }
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if decoder.is_done() { Ok((text(&body), text(&read))) } else { Err(Wrong::Head("it has not ended")) }
    }

    #[test]
    fn chunks_of_an_answer_may_have_spaces_behind_their_size_and_lines_that_end_in_lf() {
        let is_read = |text: &str| {
            let whole = body_of_answer(&[text.as_bytes()]);
            for cut in 1..text.len() {
                let (start, end) = text.as_bytes().split_at(cut);
                assert_eq!(body_of_answer(&[start, end]), whole, "{text:?} cut at {cut}");
            }
            whole
        };
        for text in [
            "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\nrest",
            "2  \r\nab\r\n3\t\r\ncde\r\n0 \r\n\r\nrest",
            "2\nab\n3\ncde\n0\n\nrest",
            "2 \nab\r\n3;x=y\ncde\n0\r\n\nrest",
        ] {
            assert_eq!(is_read(text), Ok(("abcde".to_owned(), "rest".to_owned())), "{text:?}");
        }
        assert_eq!(is_read("2\nab\n0\nx: y\n\nrest"), Ok(("abx".to_owned(), "rest".to_owned())));
        for text in [
            "2 2\r\nab\r\n0\r\n\r\n",
            " 2\r\nab\r\n0\r\n\r\n",
            "2\r\nabc\r\n0\r\n\r\n",
            "2\r\nab\r0\r\n\r\n",
            "2\rab\r\n0\r\n\r\n",
            "-2\r\nab\r\n0\r\n\r\n",
            "2\r\nab\r\n",
            "  \r\n\r\n",
        ] {
            assert!(is_read(text).is_err(), "{text:?}");
        }
    }

    /// Pieces of which requests are made, and what spoils them.
    const PIECES: [&str; 32] = [
        "GET / HTTP/1.1\r\n",
        "POST /x HTTP/1.1\r\n",
        "POST /x HTTP/1.0\r\n",
        "host: a\r\n",
        "content-length: 5\r\n",
        "content-length: 0\r\n",
        "Content-Length:5\r\n",
        "content-length : 5\r\n",
        "transfer-encoding: chunked\r\n",
        "transfer-encoding: chunked",
        "x: y\r\n",
        "connection: keep-alive, x\r\n",
        "\r\n",
        "\r\n\r\n",
        "5\r\nhello\r\n",
        "5;a=b\r\nhello\r\n",
        "hello",
        "0\r\n\r\n",
        "0\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        ":",
        "\0",
        "#",
        "ä",
        "ffffffffffffffff",
        "1",
        "a",
        "HTTP/1.1",
        ",",
    ];

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2000,
            failure_persistence: Some(Box::new(
                proptest::test_runner::FileFailurePersistence::Direct("src/gateway/http1/tests.regressions"),
            )),
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_read_does_not_depend_on_how_it_is_cut(
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..24),
            size in 1_usize..40,
        ) {
            let text = pieces.concat();
            let whole = read([text.as_bytes()]);
            let cut = read(text.as_bytes().chunks(size));
            prop_assert_eq!(whole.is_ok(), cut.is_ok(), "{:?}: {:?} and {:?}", text, whole, cut);
            if whole.is_ok() {
                prop_assert_eq!(whole, cut);
            }
        }
    }
}
