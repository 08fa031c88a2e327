//! What a subprocess said, cut down to the words that tell a person the cause.
//!
//! Invariant: no known secret, no user in an address and no query of one is left in them; they are one line of at
//! most [`MAX_CHARS`] characters, and no bytes whatever make this fail.

use std::collections::BTreeSet;

use super::{Scrub, Scrubbed};

/// How many characters are kept, counted from the end: the cause comes last.
pub const MAX_CHARS: usize = 600;

/// What a subprocess said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Its errors, joined by ` | `; also what Docker warned about its own configuration, for that is the real cause
    /// of many a refused pull.
    pub text: Scrubbed,
    /// Its warnings, each once.
    pub warnings: Vec<Scrubbed>,
}

impl Words {
    /// Reads what a subprocess wrote to stderr.
    pub fn of(stderr: &[u8], scrub: &dyn Scrub) -> Words {
        let mut text = Distinct::default();
        let mut warnings = Distinct::default();
        // Before it is cut into lines, for a secret may have some; and once more after what was quoted is not any more.
        for line in lines(&scrub.scrub(&plain(stderr))) {
            let line = line.map(|line| without_credentials(&scrub.scrub(&line)));
            match line {
                Said::Warning(line) => warnings.push(line),
                Said::Text(line) => text.push(line),
                Said::Chatter => {}
            }
        }
        let about_config = |line: &&String| {
            let line = line.to_ascii_lowercase();
            line.contains("error parsing config file") || line.contains("error loading config file")
        };
        let told: Vec<&str> =
            text.lines.iter().chain(warnings.lines.iter().filter(about_config)).map(String::as_str).collect();
        Words {
            text: Scrubbed::new(scrub, &last_chars(&told.join(" | "), MAX_CHARS)),
            warnings: warnings.lines.iter().map(|line| Scrubbed::new(scrub, &last_chars(line, MAX_CHARS))).collect(),
        }
    }
}

/// Whether some words say that a disk is full.
pub fn says_disk_full(words: &str) -> bool {
    let words = words.to_ascii_lowercase();
    ["no space left on device", "disk quota exceeded", "not enough space", "enospc"].iter().any(|w| words.contains(w))
}

/// The container that Compose gave up on a service for, because the service waits for it and it is unhealthy: its name, in
/// which a secret may have been hidden.
pub fn unhealthy_dependency(words: &str) -> Option<&str> {
    let (_, container) = words.split_once("dependency failed to start: container ")?;
    container.split(" | ").next()?.strip_suffix(" is unhealthy")
}

/// The variables that Compose warns of as not set (it goes on with an empty text), in order, each once.
pub fn unset_variables(stderr: &[u8]) -> Vec<String> {
    let mut names = Distinct::default();
    for line in lines(&plain(stderr)) {
        let (Said::Warning(line) | Said::Text(line)) = line else { continue };
        let Some((before, _)) = line.split_once(" variable is not set") else { continue };
        let name = before.rsplit(' ').next().unwrap_or_default();
        names.push(name.trim_matches(|c: char| c == '"' || c == '\\' || c == '\'').to_owned());
    }
    names.lines
}

/// Lines in their order, each once.
#[derive(Default)]
struct Distinct {
    lines: Vec<String>,
    seen: BTreeSet<String>,
}

impl Distinct {
    fn push(&mut self, line: String) {
        if !line.is_empty() && self.seen.insert(line.clone()) {
            self.lines.push(line);
        }
    }
}

enum Said<T> {
    Text(T),
    Warning(T),
    Chatter,
}

impl<T> Said<T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Said<U> {
        match self {
            Said::Text(line) => Said::Text(f(line)),
            Said::Warning(line) => Said::Warning(f(line)),
            Said::Chatter => Said::Chatter,
        }
    }
}

/// The text of some output: decoded, without terminal sequences and control characters; LF ends a line.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' | '\n' => out.push('\n'),
            '\t' => out.push(' '),
            '\u{1b}' => match chars.next_if(|c| !c.is_control()) {
                Some('[') => skip_csi(&mut chars),
                Some(']' | 'P' | 'X' | '^' | '_') => skip_string(&mut chars),
                // With intermediate characters, such as the choice of a character set.
                Some(' '..='/') => while chars.next_if(|c| (' '..='~').contains(c)).is_some_and(|c| c < '0') {},
                _ => {}
            },
            '\u{9b}' => skip_csi(&mut chars),
            '\u{9d}' | '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => skip_string(&mut chars),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// The lines of a text that are not blank, in one.
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" | ")
}

/// The text, or `…` and its end, in so many characters.
pub fn ending(text: &str, most: usize) -> String {
    let skip = text.chars().count().saturating_sub(most);
    let end: String = text.chars().skip(skip).collect();
    if skip == 0 { end } else { format!("…{end}") }
}

type Chars<'t> = std::iter::Peekable<std::str::Chars<'t>>;

/// The rest of a control sequence: parameters, intermediates, one final character.
fn skip_csi(chars: &mut Chars<'_>) {
    while chars.next_if(|c| (' '..='?').contains(c)).is_some() {}
    chars.next_if(|c| ('@'..='~').contains(c));
}

/// The rest of a control string, such as a window's title. One that has no end goes as far as its line.
fn skip_string(chars: &mut Chars<'_>) {
    while let Some(c) = chars.next_if(|c| !matches!(c, '\n' | '\r')) {
        if matches!(c, '\u{7}' | '\u{9c}') {
            return;
        }
        if c == '\u{1b}' {
            chars.next_if_eq(&'\\');
            return;
        }
    }
}

/// The lines of a text, each told for what it is and freed of its logger's frame.
fn lines(text: &str) -> impl Iterator<Item = Said<String>> {
    text.lines().map(str::trim).map(|line| {
        if let Some((level, message)) = logged(line) {
            match level {
                "warning" | "warn" => Said::Warning(message),
                "trace" | "debug" | "info" => Said::Chatter,
                _ => Said::Text(message),
            }
        } else if let Some(message) = line.strip_prefix("WARNING:") {
            Said::Warning(message.trim().to_owned())
        } else if let Some(message) = bracketed(line, "WARN") {
            Said::Warning(message.to_owned())
        } else if let Some(message) = bracketed(line, "ERRO").or_else(|| bracketed(line, "FATA")) {
            Said::Text(message.to_owned())
        } else {
            Said::Text(line.to_owned())
        }
    })
}

/// A line of Docker's logger: `time="…" level=warning msg="…"`, its level and message.
fn logged(line: &str) -> Option<(&str, String)> {
    let (before, rest) = line.split_once("level=")?;
    if !(before.is_empty() || before.starts_with("time=")) {
        return None;
    }
    let (level, rest) = rest.split_once(' ')?;
    let (_, message) = rest.split_once("msg=")?;
    Some((level, unquoted(message)))
}

/// The text between Go's quotes, or up to the next blank without them.
fn unquoted(message: &str) -> String {
    let Some(quoted) = message.strip_prefix('"') else {
        return message.to_owned();
    };
    let mut out = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('n' | 'r' | 't') => out.push(' '),
                Some(c) => out.push(c),
                None => {}
            },
            c => out.push(c),
        }
    }
    out.trim().to_owned()
}

/// The same logger's form for a terminal: `WARN[0000] …`.
fn bracketed<'l>(line: &'l str, level: &str) -> Option<&'l str> {
    let (seconds, message) = line.strip_prefix(level)?.strip_prefix('[')?.split_once(']')?;
    seconds.bytes().all(|b| b.is_ascii_digit()).then(|| message.trim())
}

/// A text whose addresses have neither a user nor a query.
pub(super) fn without_credentials(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>');
    text.split_inclusive(ends)
        .map(|piece| {
            let end = piece.char_indices().last().filter(|(_, c)| ends(*c)).map_or(piece.len(), |(at, _)| at);
            let (token, end) = piece.split_at_checked(end).unwrap_or((piece, ""));
            clean_address(token) + end
        })
        .collect()
}

fn clean_address(token: &str) -> String {
    let (scheme, rest) = match token.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, token),
    };
    let rest = if scheme.is_some() { without_user(rest) } else { rest.to_owned() };
    let rest = match rest.split_once('?') {
        // A question at the end of a word is none to a server.
        Some((path, query)) if !query.is_empty() && (scheme.is_some() || path.contains('/')) => format!("{path}?…"),
        _ => rest,
    };
    match scheme {
        Some(scheme) => format!("{scheme}://{rest}"),
        None => rest,
    }
}

fn without_user(rest: &str) -> String {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some((_, host)) = authority.rsplit_once('@') {
        return format!("…@{host}{}", rest.strip_prefix(authority).unwrap_or_default());
    }
    // A password may hold what should have been escaped in an address; then what looks like a port is none.
    let odd_port = authority.split_once(':').is_some_and(|(_, port)| !port.bytes().all(|b| b.is_ascii_digit()));
    match rest.rsplit_once('@') {
        Some((_, host)) if odd_port && !authority.starts_with('[') => format!("…@{host}"),
        _ => rest.to_owned(),
    }
}

fn last_chars(text: &str, most: usize) -> String {
    let count = text.chars().count();
    text.chars().skip(count.saturating_sub(most)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Knows(&'static str);

    impl Scrub for Knows {
        fn scrub(&self, text: &str) -> String {
            if self.0.is_empty() { text.to_owned() } else { text.replace(self.0, "***") }
        }
    }

    fn words(stderr: &str) -> (String, Vec<String>) {
        let Words { text, warnings } = Words::of(stderr.as_bytes(), &Knows(""));
        (text.to_string(), warnings.iter().map(ToString::to_string).collect())
    }

    fn text(stderr: &str) -> String {
        words(stderr).0
    }

    #[test]
    fn lines_are_stripped_told_once_in_order_and_joined() {
        assert_eq!(text("  b \n\n a\r\nb\rc\t1\n"), "b | a | c 1");
        assert_eq!(text(""), "");
    }

    #[test]
    fn the_registrys_own_message_comes_through_whole() {
        let said = "Error response from daemon: Head \"http://h:5000/v2/a/b/manifests/1\": no basic auth credentials";
        assert_eq!(text(&format!("{said}\n")), said);
    }

    #[test]
    fn terminal_sequences_go() {
        let noisy = "\x1b[2K\x1b[1;31mred\x1b[0m\x1b]0;title\x07 a\x1b]8;;u\x1b\\b\x1b(Bc\u{9b}2Kd\x1b7e\x08\0f";
        assert_eq!(text(noisy), "red abcdef");
        assert_eq!(text("a\x1b]no end\nb\x1b[\nc\x1b"), "a | b | c");
        assert_eq!(text("a\x1b[31"), "a");
    }

    #[test]
    fn warnings_are_set_aside() {
        let stderr = "time=\"2026-01-01T00:00:00Z\" level=warning msg=\"The \\\"X\\\" variable is not set.\"\n\
                      WARNING: old thing\nWARN[0000] other\nreal cause\n\
                      time=\"2026-01-01T00:00:00Z\" level=error msg=\"a \\\"b\\\"\\nc\"\n\
                      time=\"2026-01-01T00:00:00Z\" level=info msg=chatter\nlevel=fatal msg=end of it\n";
        let (text, warnings) = words(stderr);
        assert_eq!(text, "real cause | a \"b\" c | end of it");
        assert_eq!(warnings, ["The \"X\" variable is not set.", "old thing", "other"]);
    }

    #[test]
    fn a_warning_about_dockers_own_configuration_is_a_cause() {
        let (text, warnings) =
            words("WARNING: Error parsing config file (/d/config.json): illegal base64\ndenied\nWARNING: x");
        assert_eq!(text, "denied | Error parsing config file (/d/config.json): illegal base64");
        assert_eq!(warnings.len(), 2);
        assert!(words("WARNING: Error loading config file: open: permission denied").0.contains("permission"));
    }

    #[test]
    fn addresses_lose_user_and_query() {
        for (said, told) in [
            ("Get \"https://h/v2/?a=b&c=d\": denied", "Get \"https://h/v2/?…\": denied"),
            ("http://u:p@h:1/x,", "http://…@h:1/x,"),
            ("http://u:p@q@h/x", "http://…@h/x"),
            ("parse http://u:pa/ss@h:1/x", "parse http://…@h:1/x"),
            ("parse http://u:pa?ss@h:1", "parse http://…@h:1"),
            ("https://h/@scope/x?e=a@b", "https://h/@scope/x?…"),
            ("https://h:443/r@sha256:00", "https://h:443/r@sha256:00"),
            ("http://[::1]:5000/x@y", "http://[::1]:5000/x@y"),
            ("/v2/token?scope=x y", "/v2/token?… y"),
            ("does h/x exist? or a/b?", "does h/x exist? or a/b?"),
            ("r@sha256:00 why?so", "r@sha256:00 why?so"),
        ] {
            assert_eq!(text(said), told);
        }
    }

    #[test]
    fn the_last_600_characters_are_kept() {
        let long = format!("{}é{}", "a".repeat(100), "ü".repeat(599));
        assert_eq!(text(&long), format!("é{}", "ü".repeat(599)));
    }

    #[test]
    fn a_secret_is_scrubbed_before_lines_and_length_cut_it_and_after_quotes_went() {
        let say = |secret, stderr: &str| Words::of(stderr.as_bytes(), &Knows(secret)).text.to_string();
        assert_eq!(say("hid\nden", "a hid\nden b"), "a *** b");
        assert_eq!(say("hid\"den", "level=error msg=\"a hid\\\"den b\""), "a *** b");
        let cut = say("hidden", &format!("hidden{}", "x".repeat(597)));
        assert_eq!(cut, format!("***{}", "x".repeat(597)));
    }

    #[test]
    fn a_full_disk_is_told_in_several_ways() {
        assert!(says_disk_full("failed to register layer: write /x: No space left on device"));
        assert!(says_disk_full("disk quota exceeded"));
        assert!(!says_disk_full("denied"));
    }

    #[test]
    fn only_compose_says_that_what_is_waited_for_is_unhealthy() {
        let named = unhealthy_dependency;
        assert_eq!(named("dependency failed to start: container p-db-1 is unhealthy"), Some("p-db-1"));
        assert_eq!(named("a | dependency failed to start: container p-db-1 is unhealthy | b"), Some("p-db-1"));
        let hidden = "dependency failed to start: container [secret:registry credential]-db-1 is unhealthy";
        assert_eq!(named(hidden), Some("[secret:registry credential]-db-1"));
        assert_eq!(named("dependency failed to start: container p-db-1 exited (1)"), None);
        assert_eq!(named("dependency failed to start: container p-db-1 exited (1) | q is unhealthy"), None);
        assert_eq!(named("container p-db-1 is unhealthy"), None);
    }

    #[test]
    fn variables_that_are_not_set_are_found_in_each_form() {
        let stderr =
            b"time=\"t\" level=warning msg=\"The \\\"A\\\" variable is not set. Defaulting to a blank string.\"\n\
            WARN[0000] The \"B\" variable is not set. Defaulting to a blank string.\n\
            time=\"t\" level=warning msg=\"The \\\"A\\\" variable is not set. Defaulting to a blank string.\"\n\
            The C variable is not set.\nnothing\n";
        assert_eq!(unset_variables(stderr), ["A", "B", "C"]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_fail(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let words = Words::of(&bytes, &Knows(""));
            let text = words.text.as_str();
            proptest::prop_assert!(text.chars().count() <= MAX_CHARS);
            proptest::prop_assert!(!text.contains(char::is_control));
            unset_variables(&bytes);
        }

        #[test]
        fn no_user_of_an_address_is_told(
            said in r#"[a-z" ]{0,9}(http|https|oci)://[a-z]{1,5}:hidden[a-z/?#@:$-]{0,9}@[a-z]{1,9}(:[0-9]{1,4})?[a-z/?=" ]{0,9}"#
        ) {
            proptest::prop_assert!(!text(&said).contains("hidden"), "{}", text(&said));
        }
    }
}
