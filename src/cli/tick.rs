//! `tick`: one pass of the machine in the real world.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use super::journal::{self, Journal};
use super::{Format, Tick, exit};
use crate::config::Config;
use crate::drivers::clock::{Cancel, Clock};
use crate::drivers::run_loop::{self, Ended};
use crate::drivers::store::{Store, StoreError};
use crate::drivers::vault::Vault;
use crate::drivers::world::World;
use crate::effects::failure::Code;
use crate::fsm::stages::Done;
use crate::fsm::{Boot, Note, Options};

/// Runs a tick and gives the exit status.
pub fn run(config: Config, args: &Tick) -> u8 {
    let clock = Clock::start();
    let cancel = Cancel::default();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        if let Err(error) = signal_hook::flag::register(signal, cancel.flag()) {
            journal::say(&Note::warn(format!("signal {signal} cannot be caught: {error}")));
        }
    }
    let vault = Arc::new(Vault::default());
    let store = match Store::open(&config.state_dir, Arc::clone(&vault)) {
        Ok(store) => store,
        Err(error) => return unusable(&error),
    };
    let loaded = match store.load_state(clock.now()) {
        Ok(loaded) => loaded,
        Err(error) => return unusable(&error),
    };
    for note in loaded.notes {
        journal::say(&Note::warn(note));
    }
    let boot = Boot {
        settings: config.settings.clone(),
        options: Options { force: args.force, prune: args.prune },
        state: loaded.state,
        local: loaded.local,
        seed: RandomState::new().hash_one(std::process::id()),
        now: clock.now(),
    };
    let seed = boot.seed;
    let world = World::new(config, store, vault, clock, cancel, seed);
    match run_loop::run(boot, &world, &mut Journal) {
        Ended::Done(done) => {
            print(&done, args.format);
            done.exit.status()
        }
        Ended::Interrupted => {
            journal::say(&Note::warn("asked to end; the next tick goes on from here"));
            exit::TEMPORARY
        }
    }
}

fn print(done: &Done, format: Format) {
    match format {
        Format::Text => {
            let sha = done.sha.as_ref().map(|sha| format!(" {}", sha.short())).unwrap_or_default();
            let code = done.code.map(|code| format!(" {code}")).unwrap_or_default();
            println!("{}{sha}{code}", done.word);
        }
        Format::Json => match serde_json::to_string(done) {
            Ok(json) => println!("{json}"),
            Err(error) => journal::say(&Note::error(format!("the result could not be written as JSON: {error}"))),
        },
    }
}

/// The state directory cannot be used: nothing was done.
pub fn unusable(error: &StoreError) -> u8 {
    match error {
        StoreError::Locked { .. } => {
            journal::say(&Note::warn(error.to_string()));
            exit::TEMPORARY
        }
        StoreError::System(fail) => {
            let code = if fail.disk_full() { Code::DiskFull } else { Code::StageFailed };
            journal::say(&Note::error(format!("{code}: {error}")));
            exit::FAILED
        }
    }
}

/// Opens the state directory to look at it.
pub fn look(state_dir: &Path) -> (Store, Arc<Vault>) {
    let vault = Arc::new(Vault::default());
    (Store::open_read_only(state_dir, Arc::clone(&vault)), vault)
}
