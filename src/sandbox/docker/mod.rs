//! A stand-in for Docker: the agent's own executable, called under the name `docker`, behaves like the client with
//! Compose v2 for exactly the calls that the agent makes, and complains loudly about any other.
//!
//! ```text
//! <dir>/docker             symbolic link to the executable
//! <dir>/docker-world.json  registries, images, containers, and what is to go wrong
//! <dir>/docker-calls.jsonl every call that was made
//! ```
//!
//! Invariant: what it prints and how it ends is what was measured of the real thing; where the two differ, the
//! stand-in is wrong. Time in it is real time; a container's course may depend on how often it was inspected instead.

mod compose;
mod verbs;
mod world;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use world::{Behaviour, Container, Daemon, Fault, Image, Logged, Mishap, Pace, Registry, World, now_ms};

/// The name under which the executable is Docker.
pub const NAME: &str = "docker";

const WORLD: &str = "docker-world.json";
const CALLS: &str = "docker-calls.jsonl";

/// Whether a process was called as Docker, from the first of its arguments.
pub fn is_called(argv0: Option<&OsStr>) -> bool {
    argv0.and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == NAME)
}

/// Docker's `main`; `args` begins with the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let Some(stand_in) = DockerStandIn::of_program(Path::new(&program)) else {
        say(&mut io::stderr(), &format!("docker stand-in: there is no {WORLD} beside {}\n", program.display()));
        return ExitCode::from(64);
    };
    let ended = verbs::run(&stand_in, &args);
    say(&mut io::stdout(), &ended.stdout);
    say(&mut io::stderr(), &ended.stderr);
    ExitCode::from(ended.status)
}

fn say(to: &mut dyn io::Write, text: &str) {
    // A reader that went away is the caller's business.
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

/// A stand-in that is installed in a folder.
#[derive(Clone, Debug)]
pub struct DockerStandIn {
    dir: PathBuf,
}

impl DockerStandIn {
    /// Installs one in a folder, with an empty world; `exe` is an executable that hands over to [`main`].
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn install(dir: &Path, exe: &Path) -> io::Result<DockerStandIn> {
        fs::create_dir_all(dir)?;
        let stand_in = DockerStandIn { dir: std::path::absolute(dir)? };
        match symlink(std::path::absolute(exe)?, stand_in.bin()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        if !stand_in.dir.join(WORLD).exists() {
            World::default().save(&stand_in.dir)?;
        }
        Ok(stand_in)
    }

    /// The one that a program belongs to: beside it, or beside the one of that name in `PATH`.
    fn of_program(program: &Path) -> Option<DockerStandIn> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let beside = program.parent().filter(|dir| !dir.as_os_str().is_empty()).map(Path::to_owned);
        let dirs = beside.into_iter().chain(std::env::split_paths(&path));
        dirs.map(|dir| DockerStandIn { dir }).find(|stand_in| stand_in.dir.join(WORLD).exists())
    }

    /// What to configure as `docker_bin`.
    pub fn bin(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// The world as it is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn world(&self) -> io::Result<World> {
        self.edit(|world| world.clone())
    }

    /// Looks at the world or changes it, while no call of the stand-in does.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn edit<R>(&self, change: impl FnOnce(&mut World) -> R) -> io::Result<R> {
        let lock = fs::File::create(self.dir.join("docker-world.lock"))?;
        lock.lock()?;
        let mut world = World::load(&self.dir)?;
        let result = change(&mut world);
        world.save(&self.dir)?;
        Ok(result)
    }

    /// Every call so far, in order.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn calls(&self) -> io::Result<Vec<Logged>> {
        let text = match fs::read_to_string(self.dir.join(CALLS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        text.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
    }

    fn log(&self, args: &[String]) -> io::Result<()> {
        let logged = Logged { at_ms: world::now_ms(), args: args.to_vec() };
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.dir.join(CALLS))?;
        file.write_all(format!("{}\n", serde_json::to_string(&logged)?).as_bytes())
    }
}
