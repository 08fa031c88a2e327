//! Free text from outside, after every known secret has been taken out of it.
//!
//! Invariant: the only way in is through a [`Scrub`], which only the vault implements (deserialising a
//! recording aside: what it holds was scrubbed when it was written).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Knows the secrets of this tick and takes them out of a text.
pub trait Scrub {
    /// The text with every known secret replaced.
    fn scrub(&self, text: &str) -> String;
}

/// A text that went through the vault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scrubbed(String);

impl Scrubbed {
    /// Takes the secrets out of a text.
    pub fn new(scrub: &dyn Scrub, text: &str) -> Scrubbed {
        Scrubbed(scrub.scrub(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scrubbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
