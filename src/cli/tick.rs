//! `tick`: one pass of the machine in the real world.

use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::journal::{self, Journal};
use super::plan::Plan;
use super::{Format, Tick, exit};
use crate::config::Config;
use crate::drivers::Driver;
use crate::drivers::clock::{Cancel, Clock};
use crate::drivers::dry_run::DryRun;
use crate::drivers::record::{self, Recorder};
use crate::drivers::run_loop::{self, Ended, Watch};
use crate::drivers::store::{Store, StoreError};
use crate::drivers::vault::Vault;
use crate::drivers::world::World;
use crate::effects::failure::Code;
use crate::effects::{Effect, OpName, Stamp};
use crate::fsm::stages::{Done, Exit};
use crate::fsm::{Boot, Input, Machine, Note, Options, StageName};
use crate::plain;

/// Runs a tick and gives the exit status.
pub fn run(config: Config, args: &Tick) -> u8 {
    let clock = Clock::start();
    let cancel = Cancel::default();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, cancel.flag()) {
            journal::say(&Note::warn(format!("signal {signal} cannot be caught: {error}")));
        }
    }
    if args.dry_run {
        return dry_run(config, args, clock, cancel);
    }
    let vault = Arc::new(Vault::default());
    let store = match Store::open(&config.state_dir, Arc::clone(&vault)) {
        Ok(store) => store,
        Err(error) => return end(&unusable(&error), args.format),
    };
    let boot = match boot(&config, args, &store, &clock) {
        Ok(boot) => boot,
        Err(status) => return status,
    };
    let (name, seed) = (format!("{:015}.jsonl", boot.now.0), boot.seed);
    let world = World::new(config, store, vault, clock, cancel, seed);
    // One that is asked for by name is whole, whatever its size.
    let whole = args.record.as_ref().map(|_| Recorder::new(usize::MAX));
    let mut watch = (Journal, (Traced::new(&world, name), whole));
    let ended = run_loop::run(boot, &world, &mut watch);
    let (done, status) = match &ended {
        Ended::Done(done) => {
            print(done, args.format);
            (Some(done), done.exit.status())
        }
        Ended::Interrupted => {
            (None, end(&early("interrupted", None, "asked to end; the next tick goes on from here"), args.format))
        }
    };
    let (_, (traced, whole)) = watch;
    traced.keep(done);
    if let (Some(whole), Some(file)) = (whole, &args.record) {
        write(file, &whole.finish(done, world.now()));
    }
    status
}

/// Everything that a tick begins with.
fn boot(config: &Config, args: &Tick, store: &Store, clock: &Clock) -> Result<Boot, u8> {
    let loaded = store.load_state(clock.now()).map_err(|error| end(&unusable(&error), args.format))?;
    for note in loaded.notes {
        journal::say(&Note::warn(note));
    }
    Ok(Boot {
        settings: config.settings.clone(),
        options: Options { force: args.force, prune: args.prune },
        state: loaded.state,
        local: loaded.local,
        seed: RandomState::new().hash_one(std::process::id()),
        now: clock.now(),
    })
}

/// What nobody can take back.
const FOR_GOOD: [OpName; 5] = [OpName::AskLease, OpName::Login, OpName::Pull, OpName::Promote, OpName::Up];

/// A recorder whose recording lies on the disk before anything that nobody can take back, and from then on at each new
/// stage: a tick that is killed leaves it.
struct Traced<'a> {
    world: &'a World,
    name: String,
    recorder: Recorder,
    /// The stage in which it was last written.
    written: Option<StageName>,
}

impl<'a> Traced<'a> {
    fn new(world: &'a World, name: String) -> Traced<'a> {
        Traced { world, name, recorder: Recorder::new(record::LARGEST), written: None }
    }

    /// Keeps the recording of a tick that did something.
    fn keep(self, done: Option<&Done>) {
        let store = self.world.store();
        let kept = if self.recorder.is_worth_keeping(done) {
            let text = self.recorder.finish(done, self.world.now());
            store.save_recording(&self.name, text.as_bytes(), record::KEPT)
        } else if self.written.is_some() {
            store.drop_recording(&self.name)
        } else {
            Ok(())
        };
        if let Err(fault) = kept {
            // What was written before would say that this tick never ended.
            if self.written.is_some() {
                let _ = store.drop_recording(&self.name);
            }
            journal::say(&Note::warn(format!("the recording of this tick could not be kept: {}", fault.detail)));
        }
    }
}

impl Watch for Traced<'_> {
    fn boots(&mut self, boot: &Boot) {
        self.recorder.boots(boot);
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, now: Stamp) {
        self.recorder.asks(machine, effect, now);
        let stage = machine.stage();
        if FOR_GOOD.contains(&effect.op.name()) || self.written.is_some_and(|written| written != stage) {
            self.written = Some(stage);
            // What cannot be written now is told at the end.
            let _ = self.world.store().save_recording(&self.name, self.recorder.so_far().as_bytes(), record::KEPT);
        }
    }

    fn hears(&mut self, input: &Input) {
        self.recorder.hears(input);
    }
}

/// Writes a recording where it was asked for: into a file, or to a device such as a terminal. A FIFO is none of these, but
/// for what the shell made one of (`/dev/stdout`): whoever reads it might never come, and the lock is held here.
fn write(file: &Path, text: &str) {
    let put = || -> io::Result<()> {
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let mut open =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).custom_flags(nonblock).open(file)?;
        let found = open.metadata()?.file_type();
        if !(found.is_file() || found.is_char_device() || file.starts_with("/dev")) {
            return Err(plain::refusal(found));
        }
        // From here on it waits as any writer does.
        let flags = fcntl_getfl(&open)?;
        fcntl_setfl(&open, flags.difference(OFlags::NONBLOCK))?;
        open.write_all(text.as_bytes())
    };
    if let Err(error) = put() {
        journal::say(&Note::error(format!("the recording could not be written to {}: {error}", file.display())));
    }
}

/// Runs the machine in a world of which only the reading half is real, and prints what it would do.
fn dry_run(mut config: Config, args: &Tick, clock: Clock, cancel: Cancel) -> u8 {
    let (store, vault) = look(&config.state_dir);
    let boot = match boot(&config, args, &store, &clock) {
        Ok(boot) => boot,
        Err(status) => return status,
    };
    // Containers are looked at; the scratch folder has no release that knows their secrets.
    store.know_values_of_releases();
    // What has to lie on a disk to be read lies where nobody looks for it.
    let scratch = tempfile::Builder::new().prefix("monky-deployd-plan-").tempdir();
    let opened = scratch.map_err(|error| error.to_string()).and_then(|scratch| {
        let store =
            Store::open(&scratch.path().join("state"), Arc::clone(&vault)).map_err(|error| error.to_string())?;
        Ok((scratch, store))
    });
    let (scratch, scratch_store) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            journal::say(&Note::error(format!("a dry run needs a scratch folder below TMPDIR: {error}")));
            return exit::FAILED;
        }
    };
    let real = std::mem::replace(&mut config.state_dir, scratch.path().join("state"));
    let world = World::new(config, scratch_store, vault, clock, cancel, boot.seed).in_place_of(real);
    let driver = DryRun::new(world, &boot.state);
    let mut watch = (Plan::default(), Recorder::new(usize::MAX));
    let ended = run_loop::run(boot, &driver, &mut watch);
    let (mut plan, recorder) = watch;
    let Ended::Done(done) = ended else { return exit::TEMPORARY };
    if let Some(file) = &args.record {
        write(file, &recorder.finish(Some(&done), driver.now()));
    }
    let status = done.exit.status();
    plan.finish(done);
    match args.format {
        Format::Text => {
            let terminal = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            print!("{}", plan.text(terminal));
        }
        Format::Json => match serde_json::to_string_pretty(&plan) {
            Ok(json) => println!("{json}"),
            Err(error) => journal::say(&Note::error(format!("the plan could not be written as JSON: {error}"))),
        },
    }
    status
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

/// A tick that ended before the machine could say how.
fn early(word: &str, code: Option<Code>, detail: &str) -> Done {
    let exit = if code.is_some() { Exit::Failed } else { Exit::Temporary };
    Done { exit, word: word.to_owned(), sha: None, cause: None, code, detail: detail.to_owned() }
}

/// Tells such an end as any other, and gives its exit status.
fn end(done: &Done, format: Format) -> u8 {
    match done.code {
        Some(code) => journal::say(&Note::error(code.before(&done.detail))),
        None => journal::say(&Note::warn(done.detail.clone())),
    }
    print(done, format);
    done.exit.status()
}

/// The state directory cannot be used: nothing was done.
pub fn unusable(error: &StoreError) -> Done {
    match error {
        StoreError::Locked { .. } => early("locked", None, &error.to_string()),
        StoreError::System(fail) => {
            let code = if fail.disk_full() { Code::DiskFull } else { Code::StageFailed };
            early("failed", Some(code), &error.to_string())
        }
    }
}

/// Opens the state directory to look at it.
pub fn look(state_dir: &Path) -> (Store, Arc<Vault>) {
    let vault = Arc::new(Vault::default());
    (Store::open_read_only(state_dir, Arc::clone(&vault)), vault)
}
