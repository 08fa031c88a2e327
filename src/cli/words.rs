//! How moments are written for people.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::effects::Stamp;

/// RFC 3339 in UTC, to the second.
pub fn moment(stamp: Stamp) -> String {
    let at = OffsetDateTime::from_unix_timestamp(stamp.0.div_euclid(1000)).ok();
    at.and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| format!("{} ms", stamp.0))
}
