//! The only home of secret values.
//!
//! Invariant: a [`Secret`] has no Debug, Display, Clone, PartialEq or Serialize and is wiped when dropped; whatever text
//! leaves the drivers was scrubbed of every value that was ever put in here, also of those taken out again.
//!
//! A value is found in these forms: as it is; each line of it; JSON-escaped (also as Go and Rust write it);
//! percent-encoded; and within any base64, whatever stands before or after it (so `user:password` in an `auth` too).
//! Every byte that belongs to an occurrence goes, also where occurrences overlap. A value of one character is never
//! removed and one of two or three only where it stands as a word: `1` or `on` is a setting, not a secret, and
//! without digits no error can be read.
//!
//! The searcher holds the forms in memory of its own that is not wiped, nor is every text on the way to a form; they end
//! with the process, which writes no core.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{PoisonError, RwLock};

use aho_corasick::automaton::Automaton as _;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Input, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::effects::Scrub;

/// From so many characters on a value is removed wherever it is, also within a word.
const ANYWHERE: usize = 4;

/// From so many bytes on a buffer is made as large as it may become.
const MUCH: usize = 1 << 20;

/// Shorter pieces of base64 are no evidence of a value.
const BASE64_EVIDENCE: usize = 8;

/// What stands for a value whose name may not be shown.
const NAMELESS: &str = "***";

/// A secret value.
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a value in.
    pub fn new(value: String) -> Secret {
        Secret(Zeroizing::new(value))
    }

    /// The value, for the one place that sends or writes it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Bytes that may hold a secret: wiped when dropped, and so are the smaller buffers that they outgrew.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Wiped(Zeroizing<Vec<u8>>);

impl Wiped {
    /// None yet, with room for so many.
    pub fn with_room(bytes: usize) -> Wiped {
        Wiped(Zeroizing::new(Vec::with_capacity(bytes)))
    }

    /// More of it.
    pub fn extend(&mut self, part: &[u8]) {
        self.extend_within(part, usize::MAX);
    }

    /// More of it, with no room made for more than so many in all: for all of these at once when it becomes much, which
    /// the system gives as it is used, where a buffer and a larger one beside it would both be in use.
    pub fn extend_within(&mut self, part: &[u8], most: usize) {
        let length = self.0.len() + part.len();
        if self.0.capacity() < length {
            let double = length.saturating_mul(2);
            let room = if length > MUCH && most < usize::MAX { most } else { double.min(most) }.max(length);
            let mut larger = Zeroizing::new(Vec::with_capacity(room));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(part);
    }

    /// Of these bytes only the last so many. Where the others were is wiped with the rest.
    pub fn keep_last(&mut self, count: usize) {
        let first = self.0.len().saturating_sub(count);
        self.0.drain(..first);
    }

    /// Something as JSON, made for people to read or not.
    ///
    /// # Errors
    ///
    /// As for any JSON.
    pub fn json(content: &impl Serialize, pretty: bool) -> serde_json::Result<Wiped> {
        let mut bytes = Wiped::with_room(1024);
        if pretty {
            serde_json::to_writer_pretty(&mut bytes, content)?;
        } else {
            serde_json::to_writer(&mut bytes, content)?;
        }
        Ok(bytes)
    }
}

impl io::Write for Wiped {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.extend(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Deref for Wiped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Wiped {
    fn from(bytes: &[u8]) -> Wiped {
        Wiped(Zeroizing::new(bytes.to_vec()))
    }
}

/// How many; nobody is to see which.
impl fmt::Debug for Wiped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Bytes as text, with whatever is no UTF-8 replaced, in one buffer that is never outgrown.
pub fn lossy(bytes: &[u8]) -> Zeroizing<String> {
    let replaced = bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count();
    let mut text =
        Zeroizing::new(String::with_capacity(bytes.len() + replaced * char::REPLACEMENT_CHARACTER.len_utf8()));
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// Where a value belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// The token in `token.json`.
    SavedToken,
    /// The token that the last login gave, not saved yet.
    Candidate,
    /// The token that the candidate replaced, to be revoked.
    Replaced,
    /// `bootstrap.jwt`.
    BootstrapGrant,
    /// `grant.json`.
    LeaseGrant,
    /// The value of a variable.
    Env(String),
    /// The registry credential's password (and user), as text for the Docker configuration.
    Registry,
}

impl Slot {
    /// What stands in a text where the value stood.
    fn marker(&self) -> String {
        let name = match self {
            Slot::SavedToken | Slot::Candidate | Slot::Replaced => "token",
            Slot::BootstrapGrant | Slot::LeaseGrant => "grant",
            Slot::Env(name) => name,
            Slot::Registry => "registry credential",
        };
        format!("[secret:{name}]")
    }
}

/// Every secret value that this tick knows.
#[derive(Default)]
pub struct Vault {
    inside: RwLock<Inside>,
}

#[derive(Default)]
struct Inside {
    slots: BTreeMap<Slot, Secret>,
    /// Every form of every value ever put, with what stands for it.
    forms: Vec<(Zeroizing<String>, String)>,
    /// Finds the forms; none after a new value.
    search: Option<Search>,
}

impl Vault {
    /// Keeps a value.
    pub fn put(&self, slot: Slot, value: Secret) {
        self.know(&slot, value.expose());
        self.inside.write().unwrap_or_else(PoisonError::into_inner).slots.insert(slot, value);
    }

    /// Knows one more secret text of a slot, to remove it from texts: e.g. the password within a registry credential.
    pub fn know(&self, slot: &Slot, value: &str) {
        let marker = slot.marker();
        let mut inside = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        inside.forms.extend(forms(value).into_iter().map(|form| (form, marker.clone())));
        inside.search = None;
    }

    /// Takes a value out. It is still removed from texts.
    pub fn take(&self, slot: &Slot) -> Option<Secret> {
        self.inside.write().unwrap_or_else(PoisonError::into_inner).slots.remove(slot)
    }

    /// Lends a value. The vault may not be written to meanwhile.
    pub fn with<R>(&self, slot: &Slot, lend: impl FnOnce(&str) -> R) -> Option<R> {
        let inside = self.inside.read().unwrap_or_else(PoisonError::into_inner);
        inside.slots.get(slot).map(|secret| lend(secret.expose()))
    }

    /// Whether there is a value.
    pub fn has(&self, slot: &Slot) -> bool {
        self.with(slot, |_| ()).is_some()
    }

    /// The candidate becomes the saved token, and that one the replaced. False without a candidate.
    pub fn candidate_was_saved(&self) -> bool {
        let slots = &mut self.inside.write().unwrap_or_else(PoisonError::into_inner).slots;
        let Some(candidate) = slots.remove(&Slot::Candidate) else { return false };
        if let Some(old) = slots.insert(Slot::SavedToken, candidate) {
            slots.insert(Slot::Replaced, old);
        }
        true
    }
}

impl Scrub for Vault {
    fn scrub(&self, text: &str) -> String {
        {
            let inside = self.inside.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(search) = &inside.search {
                return search.scrub(text);
            }
        }
        let mut inside = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        let search = Search::new(&inside.forms);
        inside.search.insert(search).scrub(text)
    }
}

/// Finds every form at once, in one pass.
struct Search {
    /// None: it could not be built, and no text may pass.
    automaton: Option<NFA>,
    /// By pattern: what stands for it, and whether it must stand as a word.
    patterns: Vec<(String, bool)>,
}

impl Search {
    fn new(forms: &[(Zeroizing<String>, String)]) -> Search {
        // The first name of a form is its name.
        let mut first: BTreeMap<&str, &str> = BTreeMap::new();
        for (form, marker) in forms {
            first.entry(form.as_str()).or_insert(marker);
        }
        // Of its kinds the one that stays small with long values: a private key is one, a whole file may be. A prefilter
        // would hold a copy that nobody wipes.
        let automaton = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(first.keys()).ok();
        let spells_none = |automaton: &NFA, marker: &str| matches!(automaton.try_find(&Input::new(marker)), Ok(None));
        let mut patterns: Vec<(String, bool)> =
            first.iter().map(|(form, marker)| ((*marker).to_owned(), form.chars().count() < ANYWHERE)).collect();
        // A marker that itself spells a secret would give it away.
        for (marker, _) in &mut patterns {
            if !automaton.as_ref().is_some_and(|automaton| spells_none(automaton, marker)) {
                NAMELESS.clone_into(marker);
            }
        }
        Search { automaton, patterns }
    }

    fn scrub(&self, text: &str) -> String {
        let search = self.automaton.as_ref().and_then(|it| it.try_find_overlapping_iter(Input::new(text)).ok());
        let Some(matches) = search else { return NAMELESS.to_owned() };
        // Matches come in the order of their ends. A new one swallows those before it that it overlaps.
        let mut cuts: Vec<Cut<'_>> = Vec::new();
        for found in matches {
            let Some((marker, as_word)) = self.patterns.get(found.pattern().as_usize()) else { continue };
            if *as_word && !stands_alone(text, found.start(), found.end()) {
                continue;
            }
            let mut cut = Cut { start: found.start(), end: found.end(), weight: found.len(), marker };
            while let Some(before) = cuts.pop_if(|before| before.end > cut.start) {
                cut.start = cut.start.min(before.start);
                if before.weight >= cut.weight {
                    (cut.weight, cut.marker) = (before.weight, before.marker);
                }
            }
            cuts.push(cut);
        }
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for cut in cuts {
            out += text.get(at..cut.start).unwrap_or_default();
            out += cut.marker;
            at = cut.end;
        }
        out += text.get(at..).unwrap_or_default();
        out
    }
}

/// A part of a text that goes, and what stands for it: the marker of the longest value in it.
struct Cut<'a> {
    start: usize,
    end: usize,
    weight: usize,
    marker: &'a str,
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let before = text.get(..start).and_then(|t| t.chars().next_back());
    let after = text.get(end..).and_then(|t| t.chars().next());
    !part(before) && !part(after)
}

/// Every form of a value that is looked for.
fn forms(value: &str) -> Vec<Zeroizing<String>> {
    let mut all: Vec<Zeroizing<String>> = Vec::new();
    let mut add = |form: Zeroizing<String>| {
        if form.chars().count() > 1 && !all.contains(&form) {
            all.push(form);
        }
    };
    written(value, &mut add);
    written(value.trim(), &mut add);
    if value.chars().count() >= ANYWHERE {
        for (padded, bare) in [(STANDARD, STANDARD_NO_PAD), (URL_SAFE, URL_SAFE_NO_PAD)] {
            add(Zeroizing::new(padded.encode(value)));
            add(Zeroizing::new(bare.encode(value)));
            // Within a longer text the value starts at any of three places of a base64 group, and the characters at
            // its edges hold bits of what stands beside it.
            for (offset, edge) in [(0, 0), (1, 2), (2, 3)] {
                let mut shifted = Zeroizing::new(vec![0; offset]);
                shifted.extend_from_slice(value.as_bytes());
                let code = Zeroizing::new(bare.encode(&shifted));
                let end = code.len() - usize::from(shifted.len() % 3 != 0);
                if let Some(inner) = code.get(edge..end).filter(|inner| inner.len() >= BASE64_EVIDENCE) {
                    add(Zeroizing::new(inner.to_owned()));
                }
            }
        }
    }
    let mut lines = value.lines().map(str::trim).filter(|line| line.len() < value.len());
    if lines.clone().next().is_some() {
        // Lines are many and long-lived in no other encoding; a set keeps this from being quadratic.
        let mut seen = std::collections::BTreeSet::new();
        for line in lines.by_ref().filter(|line| line.chars().count() >= ANYWHERE) {
            if seen.insert(line) {
                written(line, &mut |form| all.push(form));
            }
        }
    }
    all
}

/// How a text is written as it is, in JSON, and in a URL.
fn written(text: &str, add: &mut dyn FnMut(Zeroizing<String>)) {
    add(Zeroizing::new(text.to_owned()));
    let json = in_json(text);
    // A line of JSON in a message that is JSON itself: how servers and loggers quote each other.
    add(in_json(&json));
    add(rewritten(&json, |c| match c {
        '<' => Some("\\u003c"),
        '>' => Some("\\u003e"),
        '&' => Some("\\u0026"),
        _ => None,
    }));
    add(rewritten(&json, |c| (c == '/').then_some("\\/")));
    add(json);
    add(gathered(text.escape_debug()));
    for kept in ["-._~", "-._~!$&'()*+,;=:@", "-._~!$&'()*+,;=:@/"] {
        add(percent(text, kept, "+", Case::Upper));
        add(percent(text, kept, "%20", Case::Lower));
        add(percent(text, kept, "%20", Case::Upper));
    }
}

/// Characters in one buffer, with nothing of them left elsewhere.
fn gathered(chars: impl Iterator<Item = char>) -> Zeroizing<String> {
    let mut all = Wiped::default();
    for c in chars {
        all.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    lossy(&all)
}

/// A text in which some characters are written otherwise.
fn rewritten(text: &str, otherwise: impl Fn(char) -> Option<&'static str>) -> Zeroizing<String> {
    let mut all = Wiped::default();
    for c in text.chars() {
        match otherwise(c) {
            Some(words) => all.extend(words.as_bytes()),
            None => all.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    lossy(&all)
}

/// A text as it stands between the quotes of JSON.
fn in_json(text: &str) -> Zeroizing<String> {
    let json = Wiped::json(&text, false).unwrap_or_default();
    lossy(json.get(1..json.len().saturating_sub(1)).unwrap_or_default())
}

/// How the digits of `%XX` are written.
#[derive(Clone, Copy)]
enum Case {
    Lower,
    Upper,
}

/// A text with all but letters, digits and `kept` as `%XX`, and a space as that.
fn percent(text: &str, kept: &str, space: &str, case: Case) -> Zeroizing<String> {
    let mut all = Wiped::default();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) {
            all.extend(&[byte]);
        } else if byte == b' ' {
            all.extend(space.as_bytes());
        } else {
            let digits: &[u8; 16] = match case {
                Case::Lower => b"0123456789abcdef",
                Case::Upper => b"0123456789ABCDEF",
            };
            let digit = |at: u8| digits.get(usize::from(at)).copied().unwrap_or_default();
            all.extend(&[b'%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    lossy(&all)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_is_wiped_is_what_was_written_however_it_grew() {
        let mut bytes = Wiped::default();
        for _ in 0..1000 {
            bytes.write_all(b"0123456789").unwrap();
        }
        assert_eq!(*bytes, *b"0123456789".repeat(1000));
        let json = |pretty| String::from_utf8(Wiped::json(&["a"], pretty).unwrap().to_vec()).unwrap();
        assert_eq!((json(false), json(true)), ("[\"a\"]".to_owned(), "[\n  \"a\"\n]".to_owned()));
    }
    use proptest::prelude::*;

    fn vault(values: &[(&str, &str)]) -> Vault {
        let vault = Vault::default();
        for (name, value) in values {
            vault.put(Slot::Env((*name).to_owned()), Secret::new((*value).to_owned()));
        }
        vault
    }

    #[test]
    fn a_value_goes_in_every_form_and_its_name_stays() {
        let v = vault(&[("PW", "s3cr/t+v@lue \"<ü>\"")]);
        for form in [
            "s3cr/t+v@lue \"<ü>\"",
            "s3cr/t+v@lue \\\"<ü>\\\"",
            "s3cr/t+v@lue \\\\\\\"<ü>\\\\\\\"",
            "s3cr/t+v@lue \\\"\\u003cü\\u003e\\\"",
            "s3cr\\/t+v@lue \\\"<ü>\\\"",
            "s3cr%2Ft%2Bv%40lue%20%22%3C%C3%BC%3E%22",
            "s3cr%2ft%2bv%40lue%20%22%3c%c3%bc%3e%22",
            "s3cr%2Ft%2Bv%40lue+%22%3C%C3%BC%3E%22",
            "s3cr/t+v@lue%20%22%3C%C3%BC%3E%22",
            &STANDARD.encode("s3cr/t+v@lue \"<ü>\""),
            &URL_SAFE_NO_PAD.encode("s3cr/t+v@lue \"<ü>\""),
        ] {
            assert_eq!(v.scrub(&format!("a {form} b")), "a [secret:PW] b", "{form}");
        }
        assert_eq!(v.scrub("nothing here"), "nothing here");
    }

    #[test]
    fn a_password_goes_from_the_base64_of_user_and_password() {
        let v = vault(&[("PW", "hunter2hunter2")]);
        for user in ["u", "us", "usr", "robot$x"] {
            let auth = STANDARD.encode(format!("{user}:hunter2hunter2"));
            let left = v.scrub(&format!("{{\"auth\":\"{auth}\"}}"));
            assert!(left.contains("[secret:PW]"), "{left}");
            let rest = left.replace("{\"auth\":\"", "").replace("[secret:PW]", "").replace("\"}", "");
            assert!(rest.len() <= user.len() * 2 + 6, "{left}");
        }
    }

    #[test]
    fn every_line_of_a_value_goes_by_itself_unless_it_is_tiny() {
        let v = vault(&[("KEY", "-----BEGIN-----\n  AAAABBBB\n}\nCCCC")]);
        assert_eq!(v.scrub("x AAAABBBB y CCCC } -----BEGIN-----"), "x [secret:KEY] y [secret:KEY] } [secret:KEY]");
    }

    #[test]
    fn a_value_is_found_without_the_line_end_that_it_was_stored_with() {
        assert_eq!(vault(&[("A", "abcdef\n")]).scrub("<abcdef>"), "<[secret:A]>");
    }

    #[test]
    fn short_values_go_only_as_words_and_single_characters_stay() {
        let v = vault(&[("A", "on"), ("B", "1"), ("C", "")]);
        assert_eq!(v.scrub("on only 1 one con_on on."), "[secret:A] only 1 one con_on [secret:A].");
        let v = vault(&[("D", "true")]);
        assert_eq!(v.scrub("untrue"), "un[secret:D]");
    }

    #[test]
    fn overlapping_values_leave_no_rest() {
        let v = vault(&[("A", "abcdef"), ("B", "defghi"), ("C", "cdef")]);
        assert_eq!(v.scrub("-abcdefghi-"), "-[secret:A]-");
        assert_eq!(v.scrub("cdefabcdef"), "[secret:C][secret:A]");
    }

    #[test]
    fn a_marker_never_spells_a_value() {
        let v = vault(&[("PASSWORD", "PASSWORD"), ("X", "secret")]);
        assert_eq!(v.scrub("PASSWORD is secret"), "*** is ***");
    }

    #[test]
    fn a_value_that_was_replaced_or_taken_is_still_removed() {
        let v = Vault::default();
        v.put(Slot::SavedToken, Secret::new("s.first-token".to_owned()));
        v.put(Slot::Candidate, Secret::new("s.second-token".to_owned()));
        assert!(v.candidate_was_saved() && !v.candidate_was_saved());
        assert_eq!(v.with(&Slot::SavedToken, str::to_owned).as_deref(), Some("s.second-token"));
        assert_eq!(v.take(&Slot::Replaced).map(|s| s.expose().to_owned()).as_deref(), Some("s.first-token"));
        assert!(!v.has(&Slot::Candidate) && !v.has(&Slot::Replaced));
        v.put(Slot::SavedToken, Secret::new("s.third-token".to_owned()));
        let text = "s.first-token s.second-token s.third-token";
        assert_eq!(v.scrub(text), "[secret:token] [secret:token] [secret:token]");
    }

    #[test]
    fn a_known_part_goes_under_the_name_of_its_slot() {
        let v = Vault::default();
        v.know(&Slot::Registry, "pass-word");
        assert_eq!(v.scrub("denied: pass-word"), "denied: [secret:registry credential]");
    }

    #[test]
    fn a_megabyte_that_is_all_matches_takes_no_quadratic_time() {
        let v = vault(&[("A", "aaaa"), ("B", &"a".repeat(64)), ("C", &"a".repeat(65))]);
        assert_eq!(v.scrub(&"a".repeat(1 << 20)), "[secret:C]");
    }

    #[test]
    fn a_long_value_of_many_lines_is_no_burden() {
        let lines: String = (0..5_000).map(|n| format!("line {n} of a long file\n")).collect();
        let v = vault(&[("FILE", &lines)]);
        assert_eq!(v.scrub(&lines), "[secret:FILE]");
        assert_eq!(v.scrub("- line 4711 of a long file -"), "- [secret:FILE] -");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_value_survives_in_any_text(
            values in proptest::collection::vec("[ab0/+ é\"\n]{4,9}", 1..5),
            parts in proptest::collection::vec((any::<prop::sample::Index>(), 0..6usize, "[ab0/+ é\"\n]{0,4}"), 0..8),
        ) {
            let named: Vec<(&str, &str)> = values.iter().map(|value| ("N", value.as_str())).collect();
            let v = vault(&named);
            let json = |value: &str| serde_json::Value::from(value).to_string();
            // What stands between the quotes.
            let within = |json: &str| json[1..json.len() - 1].to_owned();
            let mut text = String::new();
            for (which, how, between) in &parts {
                let value = which.get(&values);
                text += between;
                text += &match how {
                    0 => value.clone(),
                    1 => STANDARD.encode(value),
                    2 => URL_SAFE_NO_PAD.encode(value),
                    3 => percent(value, "-._~", "%20", Case::Upper).to_string(),
                    4 => json(value),
                    _ => json(&json(value)),
                };
            }
            let left = v.scrub(&text);
            for value in &values {
                prop_assert!(!left.contains(value.as_str()), "{:?} in {:?}", value, left);
                prop_assert!(!left.contains(&STANDARD.encode(value)));
                prop_assert!(!left.contains(percent(value, "-._~", "%20", Case::Upper).as_str()));
                prop_assert!(!left.contains(&within(&json(value))));
                prop_assert!(!left.contains(&within(&json(&within(&json(value))))));
            }
        }
    }
}
