//! `history`: what did it do last night, and why? From the recordings; only reads.

use std::io::BufReader;
use std::path::PathBuf;

use serde::Serialize;

use super::check::at_work_since;
use super::words::moment;
use super::{exit, tick};
use crate::config::Config;
use crate::drivers::record::Line;
use crate::drivers::replay::{Recording, notes};
use crate::drivers::store::misfits;
use crate::effects::failure::Code;
use crate::effects::state::Cause;
use crate::effects::{Effect, Event, Op, Sha, counted};
use crate::fsm::faults::{DETAIL, clip};
use crate::fsm::stages::cause;
use crate::fsm::{Level, StageName};
use crate::plain;

/// One tick that did something. Its shape is in the README.
#[derive(Debug, Serialize)]
struct Entry {
    /// When it began.
    at: String,
    /// `applied`, `failed`, …; `interrupted` if it did not end, `at_work` if it has not ended yet.
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
    for misfit in misfits(&config.state_dir) {
        eprintln!("{} {}: no tick can work until it is mended: {}", misfit.path.display(), misfit.why, misfit.remedy());
    }
    let mut entries: Vec<Entry> = Vec::new();
    let at_work = at_work_since(&config.state_dir);
    let mut began = None;
    for file in files {
        let read = plain::open(&file).map_err(Into::into).and_then(|open| Recording::read(BufReader::new(open)));
        match read {
            Ok(recording) => {
                began = Some(recording.boot.now);
                entries.push(entry(&recording, file));
            }
            Err(error) => eprintln!("{}: {error}", file.display()),
        }
    }
    // An older one was killed, and whoever is at work now has written nothing yet.
    let its_own = at_work.is_some_and(|since| began.is_some_and(|began| began >= since));
    if let Some(last) = entries.last_mut().filter(|last| last.exit.is_none() && its_own) {
        last.outcome = "at_work".to_owned();
        last.detail = "this tick has not ended yet".to_owned();
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
        println!("{} that did something, oldest first, in UTC:\n", counted(entries.len(), "tick"));
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
    let of_what = about(recording);
    let detail = match done {
        Some(done) if !done.detail.is_empty() => {
            // The code and the remedy have places of their own.
            done.code.map_or_else(|| done.detail.clone(), |code| code.bare(&done.detail))
        }
        // It went well in the end; what did not on the way is said in its warnings.
        Some(_) => said(recording, Level::Warn),
        None => {
            let why = recording.cut().unwrap_or("it was killed, or the box went down");
            let stage = stages.last().map(|(stage, _)| format!(", in stage {stage}")).unwrap_or_default();
            let said = said(recording, Level::Info);
            let said = if said.is_empty() { said } else { format!("; {said}") };
            format!("it did not come to its end: {why}{stage}{said}")
        }
    };
    Entry {
        at: moment(recording.boot.now),
        outcome: done.map_or("interrupted".to_owned(), |done| done.word.clone()),
        exit: done.map(|done| done.exit.status()),
        sha: done.map_or(of_what.as_ref().map(|(sha, _)| sha), |done| done.sha.as_ref()).map(|sha| sha.to_string()),
        code: done.and_then(|done| done.code).map(|code| code.as_str()),
        why: done.map_or(of_what.as_ref().map(|(_, cause)| *cause), |done| done.cause).map(|cause| {
            if finishes_rollback(recording) {
                "finishing an interrupted rollback".to_owned()
            } else {
                cause.to_string()
            }
        }),
        detail,
        remedy: done.and_then(|done| done.code).map(|code| code.remedy()),
        leases,
        duration_ms: end,
        stages,
        recording: file,
    }
}

/// Whether this tick went on with a rollback of one before it. What it ended for keeps the cause of the deploy that failed.
fn finishes_rollback(recording: &Recording) -> bool {
    let began_in_it = recording.boot.state.unfinished.as_ref().is_some_and(|goal| goal.instead_of.is_some());
    let effects = || {
        recording.lines.iter().filter_map(|(_, line)| match line {
            Line::Effect { stage, effect, .. } => Some((*stage, &effect.op)),
            Line::Header { .. } | Line::Event { .. } | Line::Outcome { .. } | Line::Cut { .. } => None,
        })
    };
    began_in_it
        && effects().any(|(stage, _)| stage == StageName::Up)
        && !effects().any(|(_, op)| matches!(op, Op::FetchBundle(_)))
}

/// What a tick without an end was about: the bundle, and why it was deployed.
fn about(recording: &Recording) -> Option<(Sha, Cause)> {
    let boot = &recording.boot;
    recording.lines.iter().rev().find_map(|(_, line)| match line {
        Line::Effect { stage: StageName::Up, effect: Effect { op: Op::SaveState(save), .. }, .. } => {
            save.state.unfinished.as_ref().map(|goal| match &goal.instead_of {
                Some(failed) => (failed.sha.clone(), failed.cause),
                None => (goal.sha.clone(), goal.cause),
            })
        }
        Line::Effect { effect: Effect { op: Op::FetchBundle(fetch), .. }, .. } => {
            Some((fetch.sha.clone(), cause(&boot.state, &boot.local, &fetch.sha)))
        }
        Line::Header { .. } | Line::Effect { .. } | Line::Event { .. } | Line::Outcome { .. } | Line::Cut { .. } => {
            None
        }
    })
}

/// What the machine had to say to the journal, from this level on. The line that only repeats the end is not among it.
fn said(recording: &Recording, least: Level) -> String {
    let mut notes = notes(recording);
    if recording.done().is_some() {
        notes.retain(|note| note.level != Level::Error);
    }
    let texts: Vec<String> = notes.into_iter().filter(|note| note.level >= least).map(|note| note.text).collect();
    // What to do about the tick's own end has a line of its own; this is about what the tick got over.
    let text =
        Code::ALL.iter().fold(texts.join("; "), |text, code| text.replace(&format!(" -> {}", code.remedy()), ""));
    clip(&text, DETAIL)
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
        row("what", &entry.detail.replace('\n', "\n               "));
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
