//! `history`: what did it do last night, and why? From the recordings; only reads.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use serde::Serialize;

use super::words::{moment, why};
use super::{exit, tick};
use crate::config::Config;
use crate::drivers::record::Line;
use crate::drivers::replay::Recording;
use crate::effects::Event;
use crate::fsm::StageName;

/// One tick that did something. Its shape is in the README.
#[derive(Debug, Serialize)]
struct Entry {
    /// When it began.
    at: String,
    /// `applied`, `failed`, …; `interrupted` if it did not end.
    outcome: String,
    exit: Option<u8>,
    sha: Option<String>,
    code: Option<&'static str>,
    /// Why it acted.
    why: Option<String>,
    detail: String,
    /// What a person should do about it.
    remedy: Option<&'static str>,
    /// Leases that tenancy granted it.
    leases: usize,
    duration_ms: i64,
    /// Milliseconds spent in each stage, in order.
    stages: Vec<(StageName, i64)>,
    recording: PathBuf,
}

/// Prints the history and gives the exit status.
pub fn run(config: &Config, as_json: bool) -> u8 {
    let (store, _vault) = tick::look(&config.state_dir);
    let files = match store.recordings() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("{error}");
            return exit::FAILED;
        }
    };
    let mut entries = Vec::new();
    for file in files {
        let read = File::open(&file).map_err(Into::into).and_then(|open| Recording::read(BufReader::new(open)));
        match read {
            Ok(recording) => entries.push(entry(&recording, file)),
            Err(error) => eprintln!("{}: {error}", file.display()),
        }
    }
    if as_json {
        for entry in &entries {
            match serde_json::to_string(entry) {
                Ok(json) => println!("{json}"),
                Err(error) => eprintln!("an entry could not be written as JSON: {error}"),
            }
        }
    } else if entries.is_empty() {
        println!("no tick has done anything yet");
    } else {
        println!("{} ticks that did something, oldest first, in UTC:\n", entries.len());
        for entry in &entries {
            println!("{}", text(entry));
        }
    }
    exit::OK
}

fn entry(recording: &Recording, file: PathBuf) -> Entry {
    let mut stages: Vec<(StageName, i64)> = Vec::new();
    let mut entered = 0;
    let mut end = 0;
    let mut leases = 0;
    for (_, line) in &recording.lines {
        match line {
            Line::Effect { ms, stage, .. } => {
                if stages.last().is_none_or(|(last, _)| last != stage) {
                    if let Some((_, spent)) = stages.last_mut() {
                        *spent = ms.saturating_sub(entered);
                    }
                    stages.push((*stage, 0));
                    entered = *ms;
                }
                end = *ms;
            }
            Line::Event { ms, input, .. } => {
                leases += usize::from(matches!(input.event, Event::LeaseAnswered(Ok(_))));
                end = *ms;
            }
            Line::Outcome { ms, .. } => end = *ms,
            Line::Header { .. } | Line::Cut { .. } => {}
        }
    }
    if let Some((_, spent)) = stages.last_mut() {
        *spent = end.saturating_sub(entered);
    }
    let done = recording.done();
    let incomplete = recording.cut().unwrap_or("its recording has no end");
    Entry {
        at: moment(recording.boot.now),
        outcome: done.map_or("interrupted".to_owned(), |done| done.word.clone()),
        exit: done.map(|done| done.exit.status()),
        sha: done.and_then(|done| done.sha.as_ref()).map(|sha| sha.to_string()),
        code: done.and_then(|done| done.code).map(|code| code.as_str()),
        why: done.and_then(|done| done.cause).map(why),
        detail: done.map_or(incomplete.to_owned(), |done| done.detail.clone()),
        remedy: done.and_then(|done| done.code).map(|code| code.remedy()),
        leases,
        duration_ms: end,
        stages,
        recording: file,
    }
}

/// A detail without the remedy, where that is told by itself.
pub fn without_remedy(detail: &str, remedy: Option<&str>) -> String {
    remedy.map_or(detail.to_owned(), |remedy| detail.replace(&format!(" -> {remedy}"), ""))
}

/// For a tired person: what, why, what to do, and where to look further.
fn text(entry: &Entry) -> String {
    let sha = entry.sha.as_ref().map(|sha| format!(" {}", sha.get(..12).unwrap_or(sha))).unwrap_or_default();
    let code = entry.code.map(|code| format!(" {code}")).unwrap_or_default();
    let why = entry.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let seconds = |ms: i64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
    let stages: Vec<String> = entry.stages.iter().map(|(stage, ms)| format!("{stage} {}", seconds(*ms))).collect();
    let name = entry.recording.file_name().unwrap_or_default().display();
    let mut lines = vec![format!("{}  {}{sha}{code} in {}{why}", entry.at, entry.outcome, seconds(entry.duration_ms))];
    let mut row = |label: &str, text: &str| lines.push(format!("    {label:<9}  {text}"));
    if !entry.detail.is_empty() {
        row("what", &without_remedy(&entry.detail, entry.remedy).replace('\n', "\n               "));
    }
    if let Some(remedy) = entry.remedy {
        row("to do", remedy);
    }
    match entry.leases {
        0 => {}
        1 => row("leases", "1 was spent"),
        n => row("leases", &format!("{n} were spent")),
    }
    row("stages", &stages.join(", "));
    row("recording", &name.to_string());
    lines.join("\n")
}
