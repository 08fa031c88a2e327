//! How moments and causes are written for people.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::effects::Stamp;
use crate::effects::state::Cause;

/// RFC 3339 in UTC, to the second.
pub fn moment(stamp: Stamp) -> String {
    let at = OffsetDateTime::from_unix_timestamp(stamp.0.div_euclid(1000)).ok();
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{} ms", stamp.0))
}

/// Why a tick acted, in words.
pub fn why(cause: Cause) -> String {
    match cause {
        Cause::NewSha => "new sha".to_owned(),
        Cause::Retry(n) => format!("retry {n}"),
        Cause::Drift => "drift".to_owned(),
        Cause::Forced => "forced".to_owned(),
        Cause::Interrupted => "finishing an interrupted apply".to_owned(),
    }
}
