//! What can go wrong with an answer, as a table.
//!
//! Invariant: a row says what it looks like from the agent's side; which code that is for a call is said in one place,
//! `table.rs`.

use super::proxy::{Cut, Does};

/// What a fault amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// No answer: the network, or a server that is gone.
    Lost,
    /// A status that is no success.
    Status(u16),
    /// No HTTP.
    NoAnswer,
    /// A success whose body is no body of HTTP.
    Garbled,
    /// A success that is larger than any may be.
    Large,
    /// A success with something else in it than agreed.
    Nonsense,
    /// A success that ends in the middle of its JSON, or has none: for a bundle, one that broke off.
    Short,
    /// An answer, if a strange one.
    Fine,
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub does: Does,
    pub looks: Looks,
    /// It is over by itself; the others last until the deadline of the call.
    pub quick: bool,
    /// Another try may help, and the server does not say when: a call that may arrive twice is sent three times.
    pub again: bool,
    /// The server said when to come back, or that it is too early: for a lease that is remembered.
    pub says_when: bool,
}

impl Row {
    /// Nothing was sent: whatever it is, it may be sent again.
    pub fn is_refusal(&self) -> bool {
        matches!(self.does, Does::Refuse)
    }
}

/// An answer with a marked length.
pub fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
}

const JSON: &str = "Content-Type: application/json\r\n";

/// Every fault. `elsewhere` is where redirects lead.
pub fn all(elsewhere: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut slow = |name: &str, looks, does| {
        rows.push(Row { name: name.to_owned(), does, looks, quick: false, again: false, says_when: false })
    };
    slow("silence", Looks::Lost, Does::Silence);
    slow("silence after it arrived", Looks::Lost, Does::SilenceAfter);
    slow("drips from the status line on", Looks::Lost, Does::DripAfter(Cut::StatusLine));
    slow("drips from the headers on", Looks::Lost, Does::DripAfter(Cut::Headers));
    slow("drips in the body", Looks::Lost, Does::DripAfter(Cut::Body));
    let mut row = |name: &str, looks, does| {
        let says_when = looks == Looks::Status(429) || name.contains("2099");
        let again = matches!(looks, Looks::Lost | Looks::Status(502..=504)) && !says_when;
        rows.push(Row { name: name.to_owned(), does, looks, quick: true, again, says_when });
    };
    row("refused", Looks::Lost, Does::Refuse);
    row("reset before it arrived", Looks::Lost, Does::ResetBefore);
    row("reset after it arrived", Looks::Lost, Does::ResetAfter);
    row("closed after it arrived", Looks::Lost, Does::CloseAfter);
    row("cut in the status line", Looks::Lost, Does::CutAfter(Cut::StatusLine));
    row("cut in the headers", Looks::Lost, Does::CutAfter(Cut::Headers));
    row("cut in the body", Looks::Lost, Does::CutAfter(Cut::Body));
    let chunked = |body: &str| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{body}").into_bytes()
    };
    row("cut between chunks", Looks::Lost, Does::Say(chunked("5\r\n{\"a\":\r\n")));
    row("a server that hangs up within what it announced", Looks::Lost, {
        Does::Say(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{".to_vec())
    });

    row("binary garbage", Looks::NoAnswer, Does::Say(b"\0\x01\x02\xff\xfe\r\n\r\n\0".to_vec()));
    row("another protocol", Looks::NoAnswer, Does::Say(b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec()));
    row("a TLS alert", Looks::NoAnswer, Does::Say(b"\x15\x03\x01\x00\x02\x02\x46".to_vec()));
    row("a status that is no number", Looks::NoAnswer, Does::Say(b"HTTP/1.1 twohundred OK\r\n\r\n{}".to_vec()));
    row("headers without end", Looks::NoAnswer, {
        Does::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X-Filler: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n".to_vec())
    });
    row("one header without end", Looks::NoAnswer, {
        Does::Endless(b"HTTP/1.1 200 OK\r\nX-Filler: ".to_vec(), vec![b'x'; 4096])
    });
    row("a chunk size that is no number", Looks::Garbled, Does::Say(chunked("zz\r\n{}\r\n0\r\n\r\n")));
    row("a chunk size beyond all numbers", Looks::Garbled, Does::Say(chunked("FFFFFFFFFFFFFFFFFF\r\n{}\r\n")));
    row("a length that is no number", Looks::NoAnswer, {
        Does::Say(b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}".to_vec())
    });
    row("100 without end", Looks::NoAnswer, Does::Endless(Vec::new(), b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()));

    let endless = |head: String| Does::Endless(head.into_bytes(), vec![b' '; 64 << 10]);
    row("too large, with its length", Looks::Large, {
        endless(format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: 999999999999\r\n\r\n"))
    });
    row("without an end", Looks::Large, endless(format!("HTTP/1.1 200 OK\r\n{JSON}\r\n")));
    row("chunks without end", Looks::Large, {
        Does::Endless(chunked(""), format!("2000\r\n{}\r\n", " ".repeat(0x2000)).into_bytes())
    });

    row("a page of a captive portal", Looks::Nonsense, {
        Does::Say(answer(200, "Content-Type: text/html\r\n", "<html><body>Please log in</body></html>"))
    });
    row("null", Looks::Nonsense, Does::Say(answer(200, JSON, "null")));
    row("an empty object", Looks::Nonsense, Does::Say(answer(200, JSON, "{}")));
    row("other types in every field", Looks::Nonsense, {
        Does::Say(answer(
            200,
            JSON,
            r#"{"desired_sha":7,"files":[],"type":{},"grant":1,"auth":[],"data":"x","lease_id":null}"#,
        ))
    });
    row("nesting beyond reason", Looks::Nonsense, Does::Say(answer(200, JSON, &"[".repeat(100_000))));
    row("what is no UTF-8", Looks::Nonsense, {
        Does::Say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n\"\xff\xfe\"".to_vec())
    });
    row("a compressed answer that nobody asked for", Looks::Nonsense, {
        Does::Say(answer(200, "Content-Encoding: gzip\r\n", "\u{1f}\u{8b}xxxxxxxx"))
    });
    row("JSON that ends early in a whole answer", Looks::Short, Does::Say(answer(200, JSON, "{\"data\":")));
    row("an empty 200", Looks::Short, Does::Say(answer(200, JSON, "")));
    row("a 204", Looks::Short, Does::Say(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_vec()));

    for status in [302, 307] {
        let to = format!("Location: {elsewhere}/v1/other\r\n");
        row(&format!("{status} to another host"), Looks::Status(status), Does::Say(answer(status, &to, "")));
    }
    for wait in ["0", "-5", "1000000000000", "Fri, 31 Dec 2099 23:59:59 GMT", "presently"] {
        let headers = format!("{JSON}Retry-After: {wait}\r\n");
        let does = Does::Say(answer(429, &headers, r#"{"error":{"code":"SLOW","message":"down"}}"#));
        row(&format!("429 with Retry-After: {wait}"), Looks::Status(429), does);
    }
    let headers = "Date: Mon, 30 Nov 2026 00:00:00 GMT\r\nRetry-After: Fri, 31 Dec 2099 23:59:59 GMT\r\n";
    row("429 until 2099, with a date", Looks::Status(429), Does::Say(answer(429, headers, "")));
    row("429 without a word", Looks::Status(429), Does::Say(answer(429, "", "")));
    row("500 in words", Looks::Status(500), Does::Say(answer(500, JSON, r#"{"errors":["oh"],"error":{"code":"OH"}}"#)));
    row("500 without a word", Looks::Status(500), Does::Say(answer(500, "", "")));
    row("502 with a page", Looks::Status(502), Does::Say(answer(502, "", "<h1>Bad Gateway</h1>")));
    row("503 sealed", Looks::Status(503), Does::Say(answer(503, JSON, r#"{"errors":["Vault is sealed"]}"#)));
    row("503 until 2099", Looks::Status(503), Does::Say(answer(503, headers, "")));
    row("504 without a word", Looks::Status(504), Does::Say(answer(504, "", "")));
    row("500 with a page without an end", Looks::Status(500), endless("HTTP/1.1 500 X\r\n\r\n".to_owned()));
    for status in [401, 403, 404, 407] {
        let does = Does::Say(answer(status, "Content-Type: text/html\r\n", "<h1>by some gateway</h1>"));
        row(&format!("{status} with a gateway's page"), Looks::Status(status), does);
    }

    row("three 100 before the answer", Looks::Fine, Does::Before(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(3)));
    rows
}
