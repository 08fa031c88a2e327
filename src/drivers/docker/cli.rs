//! The one place that starts a child process.
//!
//! Invariant: [`Docker::run`] returns within the call's deadline plus [`GRACE`] and two times [`DRAIN`], holds
//! no more of the child's output than the call's caps, and when it returns nobody of the child's process group
//! is left. (One exception, on purpose: a process that the kernel itself cannot end, e.g. one that hangs in a
//! dead network file system. It is left behind rather than waited for.)

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf, absolute};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};

use zeroize::Zeroizing;

use super::orphans;
use crate::drivers::vault::{Wiped, lossy};
use crate::effects::Sha;
use crate::plain;

/// How long a child that was asked to end (TERM) may take before it is ended (KILL).
pub const GRACE: Duration = Duration::from_secs(5);

/// How long pipes are read on after the child's end, when someone it started still holds them.
pub const DRAIN: Duration = Duration::from_secs(2);

/// The search path when the agent itself has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How often the deadline and the order to stop are looked at while a child says nothing.
const TICK: Duration = Duration::from_millis(10);

/// The `docker` of one agent: which program, for which project, with which environment.
#[derive(Clone)]
pub struct Docker {
    bin: PathBuf,
    state_dir: PathBuf,
    project: String,
    environment: Environment,
    cancel: Arc<AtomicBool>,
    /// Whether a dead agent's children are ended first, and were.
    orphans: Option<Arc<Once>>,
}

impl Docker {
    /// The `docker` called `bin` (a bare name is looked for in `PATH`), for one project.
    ///
    /// Once `cancel` is true, the running child is ended and no other is started.
    pub fn new(
        bin: &Path,
        state_dir: &Path,
        project: &str,
        environment: Environment,
        cancel: Arc<AtomicBool>,
    ) -> Docker {
        let bare = bin.components().count() == 1 && !bin.is_absolute();
        Docker {
            // The child starts in `/`, where a relative path would mean something else.
            bin: if bare { bin.to_owned() } else { absolute(bin).unwrap_or_else(|_| bin.to_owned()) },
            state_dir: absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned()),
            project: project.to_owned(),
            environment,
            cancel,
            orphans: None,
        }
    }

    /// The same, and before its first child it ends those that a killed agent left running. Only for the holder of the
    /// state directory's lock.
    #[must_use]
    pub fn ending_orphans(self) -> Docker {
        Docker { orphans: Some(Arc::new(Once::new())), ..self }
    }

    /// Another program of this box, called the same way: without a shell, with a deadline, in the same clean environment.
    pub fn other(&self, bin: &str) -> Docker {
        Docker { bin: bin.into(), ..self.clone() }
    }

    /// Where a bare program name is looked for (`PATH`).
    pub fn search(&self) -> Option<&OsStr> {
        self.environment.get("PATH")
    }

    /// The program.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The agent's state directory, absolute.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The Compose project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The address of the engine, if Docker is told one.
    pub fn engine(&self) -> Option<&str> {
        self.environment.get("DOCKER_HOST").and_then(OsStr::to_str)
    }

    /// Runs `docker` to its end: no shell, stdin null, the allow-listed environment, a process group of its own.
    ///
    /// # Errors
    /// When it could not be started, ran longer than its deadline, or the agent was told to stop. An exit
    /// status other than 0 is no error here.
    pub fn run(&self, call: &Call) -> Result<Output, RunError> {
        let not_started = |source: io::Error| RunError::NotStarted { bin: self.bin.clone(), source };
        if self.cancel.load(Ordering::Relaxed) {
            return Err(RunError::Cancelled { said: Captured::default() });
        }
        if let Some(once) = &self.orphans {
            once.call_once(|| orphans::end(&self.state_dir));
        }
        let (out, out_end) = io::pipe().map_err(not_started)?;
        let mut command = Command::new(&self.bin);
        command.args(&call.args).env_clear().envs(&self.environment.0).current_dir("/").process_group(0);
        command.stdin(Stdio::null());
        let mut pipes = Vec::with_capacity(2);
        let err = match call.stderr {
            Some(keep) => {
                let (err, err_end) = io::pipe().map_err(not_started)?;
                command.stderr(err_end);
                Some((err, keep))
            }
            None => {
                command.stderr(out_end.try_clone().map_err(not_started)?);
                None
            }
        };
        command.stdout(out_end);
        pipes.push(Pipe::new(out, call.stdout).map_err(not_started)?);
        if let Some((err, keep)) = err {
            pipes.push(Pipe::new(err, keep).map_err(not_started)?);
        }
        let child = command.spawn().map_err(not_started)?;
        // The command holds our copies of the write ends; with them open no pipe would ever end.
        drop(command);
        let pid = Pid::from_child(&child);
        let end = pidfd_open(pid, PidfdFlags::empty()).ok();
        Running { pid, child, end, pipes, deadline: call.deadline, cancel: &self.cancel }.watch()
    }
}

/// The whole environment of every child. Nothing else gets in: `${V}` in a compose file is looked up in the
/// environment before `.env`, and variables like `COMPOSE_FILE` or `DOCKER_AUTH_CONFIG` steer Compose.
///
/// There is no `HOME`: neither the client (it has `DOCKER_CONFIG`) nor Compose needs one, and a release must not
/// depend on whose it is. There is no proxy either: images are pulled by the daemon, which has its own settings.
#[derive(Clone)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// From the agent's own environment, read through `get`.
    ///
    /// `PATH` (credential helpers, `ssh`), `DOCKER_HOST` with `DOCKER_TLS_VERIFY`, `DOCKER_CERT_PATH` and
    /// `DOCKER_API_VERSION`, and `XDG_RUNTIME_DIR` (rootless) are handed on. Without a `DOCKER_HOST` the host of the
    /// Docker context that is in use (`DOCKER_CONTEXT`, else `currentContext` of the agent's user) is resolved
    /// once, here, because the children see neither that user's configuration nor its contexts.
    pub fn from_own(state_dir: &Path, get: &dyn Fn(&str) -> Option<OsString>) -> Environment {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let mut all = BTreeMap::new();
        let mut set = |name: &str, value: OsString| {
            all.insert(OsString::from(name), value);
        };
        set("PATH", get("PATH").unwrap_or_else(|| DEFAULT_PATH.into()));
        set("LANG", "C.UTF-8".into());
        set("COMPOSE_INTERACTIVE_NO_CLI", "1".into());
        let state_dir = absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        set("DOCKER_CONFIG", state_dir.join("docker").into());
        for name in ["XDG_RUNTIME_DIR", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION"] {
            if let Some(value) = get(name) {
                set(name, value);
            }
        }
        if let Some(host) = get("DOCKER_HOST").or_else(|| host_of_context(&get)) {
            set("DOCKER_HOST", host);
        }
        Environment(all)
    }

    /// One variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

/// The largest file of Docker's client that is read (bytes).
const LARGEST_CONFIG: u64 = 1 << 20;

/// The endpoint of the Docker context that the agent's user has in use; none: the client's default socket.
fn host_of_context(get: &dyn Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let folder = match get("DOCKER_CONFIG") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(get("HOME")?).join(".docker"),
    };
    let json =
        |path: PathBuf| serde_json::from_slice::<serde_json::Value>(&plain::read(&path, LARGEST_CONFIG).ok()?).ok();
    let name = match get("DOCKER_CONTEXT") {
        Some(name) => name.into_string().ok()?,
        None => json(folder.join("config.json"))?.get("currentContext")?.as_str()?.to_owned(),
    };
    if name.is_empty() || name == "default" {
        return None;
    }
    // The client names a context's folder by the digest of its name.
    let meta = json(folder.join("contexts/meta").join(Sha::of(name.as_bytes()).as_str()).join("meta.json"))?;
    let host = meta.pointer("/Endpoints/docker/Host")?.as_str()?;
    (!host.is_empty()).then(|| host.into())
}

/// One call of `docker`.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its arguments; never a secret among them, everyone on the machine can read them.
    pub args: Vec<OsString>,
    /// How long it may take.
    pub deadline: Duration,
    /// What is kept of stdout.
    pub stdout: Keep,
    /// What is kept of stderr; none: it goes where stdout goes, in the order of writing.
    pub stderr: Option<Keep>,
}

impl Call {
    /// A call with the usual caps: the first MiB of stdout, the last 64 KiB of stderr.
    pub fn new<A: Into<OsString>>(args: impl IntoIterator<Item = A>, deadline: Duration) -> Call {
        let args = args.into_iter().map(Into::into).collect();
        Call { args, deadline, stdout: Keep::First(1 << 20), stderr: Some(Keep::Last(64 << 10)) }
    }
}

/// Which bytes of a stream are kept; all of it is always read, so that the child never waits for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The first so many: for what is parsed.
    First(usize),
    /// The last so many: for what is told to people.
    Last(usize),
}

/// What was kept of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The bytes: the values of a release may be among them.
    pub bytes: Wiped,
    /// There were more than these.
    pub cut: bool,
}

impl Captured {
    /// The text, with whatever is no UTF-8 replaced. After a cut at the front it begins with the next whole line:
    /// half a line could be half a secret, which no one would recognise.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes: &[u8] = &self.bytes;
        if self.cut {
            let start = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map_or(bytes.len(), |at| at + 1);
            bytes = bytes.get(start..).unwrap_or_default();
        }
        lossy(bytes)
    }
}

/// How a child ended, and what it said.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status or signal.
    pub status: ExitStatus,
    /// Its stdout (with stderr, if the call asked for that).
    pub stdout: Captured,
    /// Its stderr.
    pub stderr: Captured,
}

impl Output {
    /// The signal that ended it, if one did.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

/// Why there is no end of a child to tell of.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It is not there, not executable, or the system would not start it.
    #[error("{} could not be started: {source}", bin.display())]
    NotStarted {
        /// Which program.
        bin: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ran longer than allowed and was ended with its group.
    #[error("it ran longer than {} s and was ended", after.as_secs())]
    TimedOut {
        /// Its deadline.
        after: Duration,
        /// What it had said on stderr (or on both, if they were one).
        said: Captured,
    },
    /// The agent was told to stop, so it was ended with its group.
    #[error("it was ended because the agent was told to stop")]
    Cancelled {
        /// What it had said on stderr (or on both, if they were one).
        said: Captured,
    },
}

/// Our end of a child's stream.
struct Pipe {
    /// None once it has ended.
    reader: Option<PipeReader>,
    keep: Keep,
    captured: Captured,
}

impl Pipe {
    fn new(reader: PipeReader, keep: Keep) -> io::Result<Pipe> {
        // Each end of a pipe has its own flags: the child's writes stay blocking.
        fcntl_setfl(&reader, fcntl_getfl(&reader)? | OFlags::NONBLOCK)?;
        Ok(Pipe { reader: Some(reader), keep, captured: Captured::default() })
    }

    /// Reads once, what is there.
    fn drain(&mut self, buffer: &mut [u8]) {
        let Some(reader) = &mut self.reader else { return };
        match reader.read(buffer) {
            Ok(0) => self.reader = None,
            Ok(count) => self.take(buffer.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.reader = None,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let Captured { bytes: kept, cut } = &mut self.captured;
        match self.keep {
            Keep::First(cap) => {
                let room = cap.saturating_sub(kept.len()).min(bytes.len());
                kept.extend_within(bytes.get(..room).unwrap_or_default(), cap);
                *cut |= room < bytes.len();
            }
            Keep::Last(cap) => {
                kept.extend(bytes);
                // Moving the tail to the front only now and then keeps this linear.
                if kept.len() > cap.saturating_mul(2) {
                    kept.keep_last(cap);
                    *cut = true;
                }
            }
        }
    }

    fn captured(self) -> Captured {
        let mut captured = self.captured;
        if let Keep::Last(cap) = self.keep
            && captured.bytes.len() > cap
        {
            captured.bytes.keep_last(cap);
            captured.cut = true;
        }
        captured
    }
}

/// Why a child is being ended.
#[derive(Clone, Copy)]
enum Why {
    Deadline,
    Cancelled,
}

/// How far a child's end has come; each moment is when to go on without waiting any longer.
#[derive(Clone, Copy)]
enum Phase {
    /// It runs.
    Running,
    /// It ended by itself; the pipes are read on.
    Leaving(Instant),
    /// TERM was sent.
    Asked(Instant, Why),
    /// KILL was sent.
    Killed(Instant, Why),
}

/// A child that was started and not waited for.
struct Running<'a> {
    pid: Pid,
    child: Child,
    /// Readable once it has ended, which closing its pipes does not yet mean. None after that, and on a kernel without.
    end: Option<OwnedFd>,
    pipes: Vec<Pipe>,
    deadline: Duration,
    cancel: &'a AtomicBool,
}

impl Running<'_> {
    fn watch(mut self) -> Result<Output, RunError> {
        let deadline = Instant::now() + self.deadline;
        let mut buffer = Zeroizing::new(vec![0; 64 << 10]);
        let mut phase = Phase::Running;
        loop {
            self.drain(&mut buffer);
            let gone = self.gone();
            let closed = self.pipes.iter().all(|pipe| pipe.reader.is_none());
            let now = Instant::now();
            phase = match phase {
                Phase::Running if gone => Phase::Leaving(now + DRAIN),
                Phase::Running => {
                    let why = if self.cancel.load(Ordering::Relaxed) {
                        Why::Cancelled
                    } else if now >= deadline {
                        Why::Deadline
                    } else {
                        continue;
                    };
                    self.signal(Signal::TERM);
                    Phase::Asked(now + GRACE, why)
                }
                Phase::Leaving(until) if closed || now >= until => return self.finish(gone, None),
                Phase::Asked(_, why) if gone && closed => return self.finish(gone, Some(why)),
                Phase::Asked(until, why) if now >= until => {
                    self.signal(Signal::KILL);
                    Phase::Killed(now + DRAIN, why)
                }
                Phase::Killed(until, why) if (gone && closed) || now >= until => return self.finish(gone, Some(why)),
                waiting @ (Phase::Leaving(_) | Phase::Asked(..) | Phase::Killed(..)) => waiting,
            };
        }
    }

    /// Reads what is there, or waits a moment for something to read or the child's end.
    fn drain(&mut self, buffer: &mut [u8]) {
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        let mut open: Vec<PollFd<'_>> = self
            .pipes
            .iter()
            .filter_map(|pipe| pipe.reader.as_ref())
            .map(|reader| reader.as_fd())
            .chain(self.end.as_ref().map(|end| end.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if open.is_empty() {
            thread::sleep(TICK);
        } else {
            // An interrupted poll is a short tick; the reads below find out the rest.
            let _ = poll(&mut open, Some(&tick));
        }
        for pipe in &mut self.pipes {
            pipe.drain(buffer);
        }
    }

    /// It has ended. It is not waited for yet: until then its id, and so its group's, belongs to no one else.
    fn gone(&mut self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let gone = matches!(waitid(WaitId::Pid(self.pid), look), Ok(Some(_)));
        if gone {
            self.end = None;
        }
        gone
    }

    fn signal(&self, signal: Signal) {
        // No such group: everyone is gone already.
        let _ = kill_process_group(self.pid, signal);
    }

    fn finish(mut self, gone: bool, why: Option<Why>) -> Result<Output, RunError> {
        // Whoever it started and left behind.
        self.signal(Signal::KILL);
        let status = if gone { self.child.wait().ok() } else { self.child.try_wait().ok().flatten() };
        let mut captured = self.pipes.into_iter().map(Pipe::captured);
        let stdout = captured.next().unwrap_or_default();
        let stderr = captured.next();
        match (why, status) {
            (None, Some(status)) => Ok(Output { status, stdout, stderr: stderr.unwrap_or_default() }),
            (Some(Why::Cancelled), _) => Err(RunError::Cancelled { said: stderr.unwrap_or(stdout) }),
            (Some(Why::Deadline) | None, _) => {
                Err(RunError::TimedOut { after: self.deadline, said: stderr.unwrap_or(stdout) })
            }
        }
    }
}
