//! The journal: one line an event, to stderr.
//!
//! Invariant: under systemd a line carries its priority and no time of its own (the journal has both); elsewhere it
//! carries time and level.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, Subscriber as Fmt};
use tracing_subscriber::registry::LookupSpan;

use crate::drivers::run_loop::Watch;
use crate::effects::{Effect, Stamp};
use crate::fsm::{self, Input, Machine, Note};

struct Text {
    under_systemd: bool,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = *event.metadata().level();
        if self.under_systemd {
            let priority = match level {
                Level::ERROR => 3,
                Level::WARN => 4,
                Level::INFO => 6,
                Level::DEBUG | Level::TRACE => 7,
            };
            write!(out, "<{priority}>")?;
        } else {
            SystemTime.format_time(&mut out)?;
            write!(out, " {level:>5} ")?;
        }
        ctx.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

/// Opens the journal, once.
pub fn open(level: Level, json: bool) {
    let under_systemd = std::env::var_os("JOURNAL_STREAM").is_some();
    // A line that nobody takes is lost; to complain of that on the same stderr would end the tick with a panic.
    let fmt =
        Fmt::builder().with_max_level(level).with_writer(std::io::stderr).log_internal_errors(false).with_ansi(false);
    // It is opened once a process; a second time would be a bug that must not cost the tick.
    let _ = if json {
        let fmt = fmt.json().flatten_event(true).with_target(false).with_current_span(false).with_span_list(false);
        tracing::subscriber::set_global_default(fmt.finish())
    } else {
        tracing::subscriber::set_global_default(fmt.event_format(Text { under_systemd }).finish())
    };
}

/// Writes what the machine says to the journal.
pub struct Journal;

impl Watch for Journal {
    fn notes(&mut self, note: &Note) {
        say(note);
    }

    fn asks(&mut self, machine: &Machine, effect: &Effect, _now: Stamp) {
        tracing::debug!("{}: asks for {}", machine.stage(), effect.op.name().as_str());
    }

    fn hears(&mut self, input: &Input) {
        tracing::debug!("hears {}", input.event.as_str());
    }
}

/// Writes a note.
pub fn say(note: &Note) {
    match note.level {
        fsm::Level::Info => tracing::info!("{}", note.text),
        fsm::Level::Warn => tracing::warn!("{}", note.text),
        fsm::Level::Error => tracing::error!("{}", note.text),
    }
}
