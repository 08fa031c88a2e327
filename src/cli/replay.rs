//! `replay`: does today's machine still decide as a recording says?

use std::io::BufReader;
use std::path::PathBuf;

use serde_json::json;

use super::exit;
use crate::drivers::replay::{Recording, replay};
use crate::plain;

/// Replays each file and gives the exit status: 0 only if all are identical.
pub fn run(files: &[PathBuf], as_json: bool) -> u8 {
    let mut worst = exit::OK;
    for file in files {
        let opened = plain::open(file).map_err(Into::into).and_then(|file| Recording::read(BufReader::new(file)));
        let verdict = match opened {
            Ok(recording) => replay(&recording),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                worst = exit::FAILED;
                continue;
            }
        };
        if verdict.divergence.is_some() {
            worst = exit::FAILED;
        }
        if as_json {
            println!("{}", json!({ "file": file, "verdict": verdict }));
        } else {
            println!("{}: {}", file.display(), verdict.text().trim_end());
        }
    }
    worst
}
