//! The command line: what can be asked, and with which exit status it ends.
//!
//! Invariant: results go to stdout, everything else to stderr; the exit statuses are those of the contract, and nothing
//! else in the program ends the process.

// The standard ones panic when the reader has gone away (`status | head -1`): a tick must not end in the middle for that.
macro_rules! print {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stdout(), $($text)*);
    }};
}
macro_rules! println {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod bootstrap;
mod check;
pub mod graph;
mod history;
pub(crate) mod journal;
mod man;
pub mod plan;
mod replay;
mod status;
mod tick;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::config::Config;

/// Exit statuses (contract §1).
pub mod exit {
    /// Applied, unchanged, held, or offline with `laptop_mode`.
    pub const OK: u8 = 0;
    /// The deploy failed or the bundle was refused.
    pub const FAILED: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// Temporary: the timer retries.
    pub const TEMPORARY: u8 = 75;
    /// The configuration is wrong.
    pub const CONFIG: u8 = 78;
}

/// Where the configuration is, unless something else is said.
const CONFIG_FILE: &str = "/etc/monky-deployd/config.yaml";

/// Deploy agent for boxes that run Docker Compose.
#[derive(Debug, Parser)]
#[command(name = "monky-deployd", version, max_term_width = 100)]
struct Cli {
    /// The configuration [default: $MONKY_DEPLOYD_CONFIG, then /etc/monky-deployd/config.yaml].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// TRACE, DEBUG, INFO, WARN or ERROR; overrides the configuration.
    #[arg(long, global = true, value_name = "LEVEL", ignore_case = true)]
    log_level: Option<tracing::Level>,
    /// How the journal is written.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    log_format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Drawing {
    Mermaid,
    Dot,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One pass: check in, deploy what is desired, report.
    Tick(Tick),
    /// Store the one-time bootstrap grant; the next tick logs in with it.
    Bootstrap {
        /// The file with the grant; `-` is stdin.
        #[arg(long, value_name = "FILE")]
        grant_file: PathBuf,
    },
    /// What is applied, since when, how the last tick ended, and what comes next.
    Status {
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// The last ticks that did something: when, what, how long, and why.
    History {
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Is everything there that a deploy needs? Each fact with its remedy; only reads.
    Check {
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Run recordings through the machine: does it still decide like that?
    Replay {
        /// Recordings: from <state_dir>/recordings or `tick --record`.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// The state machine, drawn from its transition table.
    Graph {
        #[arg(long, value_enum, default_value_t = Drawing::Mermaid)]
        format: Drawing,
    },
    /// The effective configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// The whole loop on embedded stand-ins, nothing to install.
    #[cfg(feature = "sandbox")]
    Demo,
    /// Completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// The man page; of a command, if one is named.
    Man {
        /// Such as `tick`, or `config show`.
        #[arg(value_name = "COMMAND")]
        of: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Tick {
    /// Print what a tick would do, effect by effect, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove the agent's own images that no kept release needs.
    #[arg(long)]
    prune: bool,
    /// Ignore backoff and quarantine, and apply again what is applied.
    #[arg(long)]
    force: bool,
    /// Write a recording of this tick, whatever it does.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print it, with every default.
    Show,
    /// Check it.
    Check,
}

/// Runs what the command line says.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors.
            let status = if error.use_stderr() { exit::USAGE } else { exit::OK };
            // Nothing is left to be done when not even this can be written.
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    no_core_dumps();
    ExitCode::from(run(cli))
}

fn run(cli: Cli) -> u8 {
    let env_file = || std::env::var_os("MONKY_DEPLOYD_CONFIG").filter(|file| !file.is_empty()).map(PathBuf::from);
    let file = cli.config.clone().or_else(env_file).unwrap_or_else(|| CONFIG_FILE.into());
    let configured = |go: &dyn Fn(Config) -> u8| match Config::load(&file) {
        Ok(config) => go(config),
        Err(error) => {
            eprintln!("{error}");
            exit::CONFIG
        }
    };
    match &cli.command {
        Command::Tick(tick) => configured(&|config| {
            journal::open(cli.log_level.unwrap_or(config.log_level), cli.log_format == Format::Json);
            tick::run(config, tick)
        }),
        Command::Bootstrap { grant_file } => configured(&|config| bootstrap::run(&config, grant_file)),
        Command::Status { format } => configured(&|config| status::run(&config, *format == Format::Json)),
        Command::History { format } => configured(&|config| history::run(&config, *format == Format::Json)),
        Command::Check { format } => configured(&|config| check::run(&config, &file, *format == Format::Json)),
        Command::Replay { files, format } => replay::run(files, *format == Format::Json),
        Command::Graph { format } => {
            print!("{}", if *format == Drawing::Dot { graph::dot() } else { graph::mermaid() });
            exit::OK
        }
        Command::Config { command: ConfigCommand::Show } => configured(&|config| {
            print!("{}", config.show());
            exit::OK
        }),
        Command::Config { command: ConfigCommand::Check } => configured(&|_| {
            println!("{}: ok", file.display());
            println!("whether the files and servers that it names are there is told by `monky-deployd check`");
            exit::OK
        }),
        #[cfg(feature = "sandbox")]
        Command::Demo => {
            // The story is on stdout; the journal only for those who ask.
            if let Some(level) = cli.log_level {
                journal::open(level, cli.log_format == Format::Json);
            }
            crate::sandbox::demo::run().status()
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "monky-deployd", &mut script);
            print!("{}", String::from_utf8_lossy(&script));
            exit::OK
        }
        Command::Man { of } => man::run(Cli::command(), of),
    }
}

/// Secrets are in this process's memory: a crash must not leave them in a file.
fn no_core_dumps() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    // Where the system does not let us there is nothing else to try, and no reason not to deploy.
    let _ = setrlimit(Resource::Core, none);
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
