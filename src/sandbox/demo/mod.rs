//! `demo`: the whole loop on embedded stand-ins, told step by step and checked step by step.
//!
//! Invariant: everything between a step's words and its end comes from what was seen; a claim that does not hold is
//! told, and makes the exit status 1.

pub mod print;
pub mod set;
pub mod story;

use std::io::{self, Write};
use std::path::Path;

use crate::drivers::clock::Cancel;
use crate::fsm::stages::Exit;
use print::{Paint, Printer};
use set::{Seen, Set, Trouble, doing};
use story::{Act, FIRST, Part, STEPS, Step};

/// How many claims were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// They hold.
    pub held: usize,
    /// They do not.
    pub broken: usize,
}

/// What was played.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// The claims, counted.
    pub tally: Tally,
    /// What was seen in each part, in order.
    pub seen: Vec<Seen>,
}

/// Shows it on stdout and gives the exit status.
pub fn run() -> Exit {
    let cancel = Cancel::default();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        if let Err(error) = signal_hook::flag::register(signal, cancel.flag()) {
            eprintln!("signal {signal} cannot be caught: {error}; a demo that is ended leaves its files behind");
        }
    }
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(error) => {
            eprintln!("the demo calls its own executable as `docker`, and cannot find it: {error}");
            return Exit::Failed;
        }
    };
    let mut out = io::stdout().lock();
    match play(STEPS, &exe, cancel, &mut out, Paint::of_stdout()) {
        Ok(played) => status(played.tally),
        Err(Trouble::Interrupted) => {
            eprintln!("asked to end; nothing is left behind");
            Exit::Temporary
        }
        // Whoever read has gone away: there is nobody left to tell.
        Err(Trouble::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Exit::Failed,
        Err(trouble) => {
            eprintln!("the demo could not go on: {trouble}");
            Exit::Failed
        }
    }
}

/// The exit status of a demo: 0 only if there were claims and all of them hold.
pub const fn status(tally: Tally) -> Exit {
    if tally.broken == 0 && tally.held > 0 { Exit::Ok } else { Exit::Failed }
}

/// Plays some steps and tells them to `out`. `exe` is the executable that is Docker under the name `docker`.
///
/// # Errors
/// If the demo itself cannot go on. A claim that does not hold is no error: it is told and counted.
pub fn play(steps: &[Step], exe: &Path, cancel: Cancel, out: &mut dyn Write, paint: Paint) -> Result<Played, Trouble> {
    let mut set = Set::build(exe, cancel)?;
    let told = tell(steps, &mut set, &mut Printer::new(out, paint));
    // The files go whatever happened.
    let struck = set.strike();
    let played = told?;
    struck.map(|()| played)
}

fn tell(steps: &[Step], set: &mut Set, page: &mut Printer<'_>) -> Result<Played, Trouble> {
    set.add_box(FIRST)?;
    page.opening(set).map_err(doing("writing"))?;
    let mut played = Played::default();
    for (number, step) in (1_usize..).zip(steps) {
        page.heading(number, step.title).map_err(doing("writing"))?;
        for (at, part) in step.parts.iter().enumerate() {
            if at > 0 {
                page.gap().map_err(doing("writing"))?;
            }
            page.words(part.words).map_err(doing("writing"))?;
            let seen = perform(set, part)?;
            let claims = (part.claims)(&seen);
            let broken = claims.iter().filter(|claim| claim.differs.is_some()).count();
            played.tally.broken += broken;
            played.tally.held += claims.len() - broken;
            page.seen(part.env_id, &seen).and_then(|()| page.claims(&claims)).map_err(doing("writing"))?;
            played.seen.push(seen);
        }
    }
    page.closing(played.tally).map_err(doing("writing"))?;
    Ok(played)
}

/// Does what a part says, and looks on.
fn perform(set: &mut Set, part: &Part) -> Result<Seen, Trouble> {
    match part.act {
        Act::Alone(act) => set.watch(part.env_id, |set| act(set).map(|()| None)),
        Act::ThenTick(prepare) => {
            prepare(set)?;
            set.watch(part.env_id, |set| set.tick(part.env_id).map(Some))
        }
    }
}
