//! The content sha of a bundle: 64 lower-case hex digits, and nothing else can be one.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A bundle's content sha. It is safe as the name of a folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha(Arc<str>);

impl Sha {
    /// The sha256 of some bytes.
    pub fn of(bytes: &[u8]) -> Sha {
        Sha(hex(&Sha256::digest(bytes)).into())
    }

    /// Its 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its first 12 digits, for people.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

/// What is said of a text that is no sha.
#[derive(Debug, thiserror::Error)]
#[error("not a sha256 in lower-case hex (64 digits)")]
pub struct NotASha;

impl TryFrom<String> for Sha {
    type Error = NotASha;

    fn try_from(text: String) -> Result<Sha, NotASha> {
        let hex_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == 64 && text.bytes().all(hex_digit) { Ok(Sha(text.into())) } else { Err(NotASha) }
    }
}

impl From<Sha> for String {
    fn from(sha: Sha) -> String {
        sha.0.as_ref().to_owned()
    }
}

impl fmt::Display for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha({}…)", self.short())
    }
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}
