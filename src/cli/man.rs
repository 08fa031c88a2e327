//! The man pages: one of the program, one of each command, made from the command line's own definition.
//!
//! Invariant: every page that another one refers to can be had.

use std::io::{self, Write as _};

use clap::Command;
use clap_mangen::Man;

use super::exit;

/// What the definition does not know. Roff: a line begins with neither a dot nor an apostrophe unless it is a request.
const EXIT_STATUS: &str = r#".SH "EXIT STATUS"
.TP
\fB0\fR
Applied, unchanged, idle, held, or offline with \fBlaptop_mode\fR.
.TP
\fB1\fR
The deploy failed or the bundle was refused; or what was asked for could not be done.
.TP
\fB2\fR
The command line is wrong.
.TP
\fB75\fR
Temporary, and nothing is wrong with the bundle: tenancy, OpenBao or Docker did not answer, leases are used up, the backoff is not over,
another tick is at work, or the tick was told to end. The timer retries.
.TP
\fB78\fR
The configuration is wrong. Nothing was done.
"#;

const SURROUNDINGS: &str = r#".SH FILES
.TP
\fI/etc/monky\-deployd/config.yaml\fR
The configuration. Every key with its default is in
\fI/usr/share/doc/monky\-deployd/examples/config.example.yaml\fR;
\fBmonky\-deployd config check\fR says what is wrong with it.
.TP
\fI/var/lib/monky\-deployd\fR
State, secrets and releases (\fBstate_dir\fR). It belongs to the user \fBmonky\-deployd\fR, and to nobody else.
.TP
\fI/var/lib/monky\-deployd/current\fR
The release that runs.
.TP
\fI/var/lib/monky\-deployd/recordings\fR
The last ticks that did or failed something, for \fBmonky\-deployd replay\fR.
.SH ENVIRONMENT
.TP
\fBMONKY_DEPLOYD_CONFIG\fR
The configuration, where \fB\-\-config\fR is not given.
.TP
\fBPATH\fR
Where \fBdocker\fR is looked for.
.TP
\fBDOCKER_HOST\fR, \fBDOCKER_TLS_VERIFY\fR, \fBDOCKER_CERT_PATH\fR, \fBDOCKER_API_VERSION\fR, \fBXDG_RUNTIME_DIR\fR, \fBLANG\fR
Handed on to \fBdocker\fR. Nothing else is.
.TP
\fBTMPDIR\fR
Where \fBtick \-\-dry\-run\fR has its scratch folder.
"#;

/// Prints the page of the program (no name), or of a command: `tick`, or `config show`.
pub fn run(program: Command, of: &[String]) -> u8 {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let mut command = &program;
    for name in of {
        match command.find_subcommand(name) {
            Some(found) => command = found,
            None => {
                eprintln!("there is no command `{}`: `monky-deployd --help` lists them", of.join(" "));
                return exit::USAGE;
            }
        }
    }
    match page(command, of) {
        Ok(page) => {
            print!("{}", String::from_utf8_lossy(&page));
            exit::OK
        }
        Err(error) => {
            eprintln!("the man page could not be written: {error}");
            exit::FAILED
        }
    }
}

fn page(command: &Command, of: &[String]) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).source(concat!("monky-deployd ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    match of {
        [] => {
            write!(page, "{EXIT_STATUS}{SURROUNDINGS}.SH \"SEE ALSO\"\n\\fBdocker\\fR(1), \\fBsystemd.timer\\fR(5)\n")?
        }
        [name] if name == "tick" => write!(page, "{EXIT_STATUS}.SH \"SEE ALSO\"\n\\fBmonky\\-deployd\\fR(1)\n")?,
        _ => writeln!(page, ".SH \"SEE ALSO\"\n\\fBmonky\\-deployd\\fR(1)")?,
    }
    Ok(page)
}
