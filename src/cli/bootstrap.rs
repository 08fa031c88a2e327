//! `bootstrap`: stores the one-time grant that a new box gets from whoever sets it up.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::words::moment;
use super::{exit, tick};
use crate::config::Config;
use crate::drivers::clock::Clock;
use crate::drivers::http::one_line;
use crate::drivers::store::Store;
use crate::drivers::tenancy::{ends, environment};
use crate::drivers::vault::Vault;

/// The largest grant (bytes).
const LARGEST: u64 = 64 * 1024;

/// Stores the grant in `file` (`-`: stdin) and gives the exit status.
pub fn run(config: &Config, file: &Path) -> u8 {
    super::journal::open(config.log_level, false);
    let grant = match read(file) {
        Ok(grant) => grant,
        Err(error) => {
            eprintln!("the grant could not be read from {}: {error}", file.display());
            return exit::FAILED;
        }
    };
    if !is_a_jwt(grant.trim()) {
        eprintln!(
            "the grant was not stored: {} does not hold one; a grant is a JWT, three words joined by dots",
            file.display()
        );
        return exit::FAILED;
    }
    if let Some(end) = ends(grant.trim()).filter(|end| *end <= Clock::start().now()) {
        eprintln!("the grant was not stored: it ended at {}; ask tenancy for a new one", moment(end));
        return exit::FAILED;
    }
    let ours = &config.settings.env_id;
    if let Some(other) = environment(grant.trim()).filter(|named| named != ours) {
        eprintln!(
            "the grant was not stored: it is for the environment {:?}, and `env_id` of this box is {ours:?}; ask tenancy for a \
             grant for {ours:?}, or mend `env_id`",
            one_line(&other, 100)
        );
        return exit::FAILED;
    }
    let store = match Store::open(&config.state_dir, Arc::new(Vault::default())) {
        Ok(store) => store,
        Err(error) => {
            let done = tick::unusable(&error);
            eprintln!("the grant was not stored: {}", done.detail);
            return done.exit.status();
        }
    };
    match store.save_bootstrap(&grant) {
        Ok(()) => {
            println!("stored; the next tick logs in with it");
            exit::OK
        }
        Err(fault) => {
            eprintln!("the grant was not stored: {}", fault.detail);
            exit::FAILED
        }
    }
}

/// Whether it has a JWT's outer form. Whether it is good only OpenBao can say; this keeps a file that was mixed up from
/// taking the place of a grant that waits.
fn is_a_jwt(text: &str) -> bool {
    let base64url = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.split('.').count() == 3 && text.split('.').all(base64url)
}

fn read(file: &Path) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    let from: &mut dyn Read = if file == Path::new("-") { &mut io::stdin().lock() } else { &mut File::open(file)? };
    from.take(LARGEST + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > LARGEST {
        return Err(io::Error::other(format!("larger than {LARGEST} bytes, which no grant is")));
    }
    Ok(text)
}
