//! Docker's own words, made readable. To be replaced by `effects::words`, which has the same functions.

use std::collections::BTreeSet;

/// What a child said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Its lines, each once, in order, joined by ` | `; the last 600 characters.
    pub text: String,
    /// Its warnings, each once.
    pub warnings: Vec<String>,
}

/// Cleans up what a child said.
pub fn extract(bytes: &[u8]) -> Words {
    let text = without_escapes(&String::from_utf8_lossy(bytes));
    let mut seen = BTreeSet::new();
    let mut words = Words::default();
    let mut lines = Vec::new();
    for line in text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()) {
        if !seen.insert(line.to_owned()) {
            continue;
        }
        if line.starts_with("WARNING:") || line.contains("level=warning") {
            words.warnings.push(line.to_owned());
        } else {
            lines.push(line);
        }
    }
    let joined = lines.join(" | ");
    let skip = joined.chars().count().saturating_sub(600);
    words.text = joined.chars().skip(skip).collect();
    words
}

/// The words say that a disk is full.
pub fn says_disk_full(text: &str) -> bool {
    ["no space left on device", "disk quota exceeded"].iter().any(|phrase| text.to_lowercase().contains(phrase))
}

/// The variables that Compose warned are not set, each once.
pub fn unset_variables(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.contains("variable is not set")) {
        let before = line.split("variable is not set").next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = before.trim_end_matches(|c| !is_name(c)).rsplit(|c| !is_name(c)).next().unwrap_or_default();
        if !name.is_empty() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The text without terminal control sequences.
pub fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            if c == '\n' || c == '\r' || c == '\t' || !c.is_control() {
                out.push(c);
            }
            continue;
        }
        match chars.next() {
            // CSI: parameters, then one final byte.
            Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            // OSC: up to BEL or ESC \.
            Some(']') => {
                while let Some(c) = chars.next() {
                    if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                        break;
                    }
                }
            }
            Some(_) | None => {}
        }
    }
    out
}
