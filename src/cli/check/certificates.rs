//! When a certificate ends: the one thing of X.509 that the TLS library does not tell.
//!
//! Invariant: total. Bytes that are no certificate give none, whatever they are.

use time::{Date, Month, Time};

/// One element of DER: its tag, its content, and what comes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length >= 0x80 {
        // The length itself is so many bytes long; more than four are no certificate's.
        let (digits, after) = rest.split_at_checked(length - 0x80).filter(|(digits, _)| digits.len() <= 4)?;
        length = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    Some((*tag, content, after))
}

/// The end of a certificate's validity (`notAfter`), in seconds since the epoch.
pub fn not_after(der: &[u8]) -> Option<i64> {
    let (_, certificate, _) = element(der)?;
    let (_, mut rest, _) = element(certificate)?;
    // The version may be left out; then serial number, algorithm and issuer.
    let (tag, _, after) = element(rest)?;
    if tag == 0xA0 {
        rest = after;
    }
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, end) = element(validity)?;
    let (tag, text, _) = element(end)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    // UTCTime has two digits for the year, and they mean 1950 to 2049.
    let (year, text) = text.split_at_checked(if tag == 0x17 { 2 } else { 4 })?;
    let year: i32 = year.parse().ok()?;
    let year = if tag != 0x17 {
        year
    } else if year < 50 {
        year + 2000
    } else {
        year + 1900
    };
    let part = |at: usize| text.get(at..at + 2)?.parse::<u8>().ok();
    let date = Date::from_calendar_date(year, Month::try_from(part(0)?).ok()?, part(2)?).ok()?;
    let time = Time::from_hms(part(4)?, part(6)?, part(8)?).ok()?;
    Some(date.with_time(time).assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["ca.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, month, day);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_is_read_in_both_of_its_spellings() {
        assert_eq!(not_after(&certificate(2033, 5, 18)), Some(1_999_987_200));
        assert_eq!(not_after(&certificate(2049, 12, 31)), Some(2_524_521_600));
        assert_eq!(not_after(&certificate(2050, 1, 1)), Some(2_524_608_000), "from here on with four digits");
    }

    #[test]
    fn whatever_is_cut_off_or_changed_ends_without_a_panic() {
        let whole = certificate(2033, 5, 18);
        for end in 0..whole.len() {
            assert_eq!(not_after(&whole[..end]), None, "{end}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7F, 0x80, 0x84, 0xFF] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = not_after(&changed);
            }
        }
    }
}
