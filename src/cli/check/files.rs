//! The files that the configuration is made of and names: itself, CA files, Docker's client, the mesh's.
//!
//! Invariant: only looks; a file that could not be looked at is a failure and never silently fine.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::words::moment;
use super::certificates::not_after;
use super::line::Line;
use crate::config::{Config, Transport};
use crate::drivers::http::read_roots;
use crate::drivers::transport::SDK_UNBUILT;
use crate::effects::{Stamp, counted};
use crate::plain;

/// A CA that ends within so many days is told.
const SOON_DAYS: i64 = 30;

/// Looks at all of them.
pub fn look(config: &Config, file: &Path, search: Option<&OsStr>, now: Stamp) -> Vec<Line> {
    let mode = fs::metadata(file).map(|found| found.mode()).ok();
    let mut lines = vec![configuration(file, mode, &config.examples())];
    for (fact, ca) in [("tenancy.ca_file", &config.tenancy.ca_file), ("bao.ca_file", &config.bao.ca_file)] {
        if let Some(ca) = ca {
            let ends = read_roots(ca).map(|roots| roots.iter().map(|root| not_after(root.der())).collect());
            lines.push(authority(fact, ca, ends, now));
        }
    }
    lines.push(client(&config.docker_bin, found(&config.docker_bin, search).as_deref()));
    if let Transport::Sdk { identity_file, library, .. } = &config.transport {
        lines.push(Line::failure("transport", SDK_UNBUILT.to_owned(), "set `transport: proxy` or `transport: system`"));
        for (fact, path) in [("sdk.identity_file", identity_file), ("sdk.library", library)] {
            lines.push(named(fact, path, plain::open(path).err().map(|error| error.to_string())));
        }
    }
    lines
}

/// The configuration is valid, or nobody would ask. It has no secret, so everyone may read it; who may write it decides
/// which servers and which program the agent trusts.
fn configuration(file: &Path, mode: Option<u32>, examples: &[&str]) -> Line {
    let shown = file.display();
    if !examples.is_empty() {
        let what = format!("{shown} is valid, and {} still have the example's values", examples.join(", "));
        return Line::failure("config", what, &format!("sudoedit {shown}"));
    }
    let remedy = format!("sudo chmod go-w {shown}");
    match mode {
        Some(mode) if mode & 0o002 != 0 => {
            Line::failure("config", format!("{shown} is valid, and anybody may write it"), &remedy)
        }
        Some(mode) if mode & 0o020 != 0 => {
            Line::warning("config", format!("{shown} is valid, and its group may write it"), &remedy)
        }
        Some(_) | None => Line::ok("config", format!("{shown} is valid")),
    }
}

/// When the certificates of a CA file end (seconds since the epoch; none: that could not be read).
type Ends = Result<Vec<Option<i64>>, String>;

fn authority(fact: &str, path: &Path, ends: Ends, now: Stamp) -> Line {
    let shown = path.display();
    let ends = match ends {
        Ok(ends) => ends,
        Err(why) => {
            return Line::failure(
                fact,
                format!("{shown} {why}"),
                "put the CA's PEM certificate there, readable by the agent",
            );
        }
    };
    let known: Vec<i64> = ends.iter().flatten().copied().collect();
    let now_s = now.0.div_euclid(1000);
    let [expired, soon] = [now_s, now_s.saturating_add(SOON_DAYS * 86_400)]
        .map(|limit| known.iter().filter(|end| **end <= limit).count());
    let day = |end: Option<&i64>| end.map(|end| moment(Stamp(end.saturating_mul(1000)))).unwrap_or_default();
    let renew = "put the CA's new certificate into the file, beside the old one until the servers have changed";
    if expired > 0 && expired == ends.len() {
        return Line::failure(fact, format!("{shown} ended at {}", day(known.iter().max())), renew);
    }
    if soon > 0 {
        let what = format!(
            "{shown}: {soon} of {} ended or will within {SOON_DAYS} days, the first at {}",
            counted(ends.len(), "certificate"),
            day(known.iter().min())
        );
        return Line::warning(fact, what, renew);
    }
    match known.iter().min() {
        first @ Some(_) => {
            Line::ok(fact, format!("{shown}: {}, the first ends at {}", counted(ends.len(), "certificate"), day(first)))
        }
        None => Line::warning(
            fact,
            format!("{shown} is usable; when it ends could not be read"),
            "look with `openssl x509 -noout -enddate`",
        ),
    }
}

/// Where a program is: the path itself, or the first of that name in the search path.
fn found(bin: &Path, search: Option<&OsStr>) -> Option<PathBuf> {
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|at| at.is_file() && at.mode() & 0o111 != 0);
    if bin.components().count() > 1 || bin.is_absolute() {
        return Some(bin.to_owned()).filter(runs);
    }
    std::env::split_paths(search?).map(|folder| folder.join(bin)).find(runs)
}

fn client(bin: &Path, at: Option<&Path>) -> Line {
    match at {
        Some(at) => Line::ok("docker_bin", at.display().to_string()),
        None => {
            let what = format!("{} is no program that can be run", bin.display());
            Line::failure("docker_bin", what, "install Docker's client, or mend `docker_bin`")
        }
    }
}

fn named(fact: &str, path: &Path, trouble: Option<String>) -> Line {
    match trouble {
        None => Line::ok(fact, path.display().to_string()),
        Some(why) => {
            Line::failure(fact, format!("{}: {why}", path.display()), "put the file there, readable by the agent")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Level;
    use super::*;

    #[test]
    fn a_configuration_that_others_can_write_is_not_fine_and_one_that_they_can_read_is() {
        let level = |mode| configuration(Path::new("c.yaml"), Some(mode), &[]).level;
        assert_eq!([0o100_600, 0o100_644, 0o100_640].map(level), [Level::Ok; 3]);
        assert_eq!(level(0o100_664), Level::Warning);
        assert_eq!([0o100_666, 0o100_602].map(level), [Level::Failure; 2]);
        assert!(configuration(Path::new("c.yaml"), Some(0o666), &[]).remedy.unwrap().contains("chmod go-w c.yaml"));
    }

    #[test]
    fn an_example_that_nobody_has_touched_is_no_configuration() {
        let line = configuration(Path::new("c.yaml"), Some(0o644), &["tenancy.host", "bao.addr"]);
        assert!(line.level == Level::Failure && line.what.contains("tenancy.host, bao.addr"), "{line:?}");
    }

    #[test]
    fn a_ca_is_told_by_when_it_ends() {
        let now = Stamp(1_000_000_000_000);
        let day = |days: i64| Some(1_000_000_000 + days * 86_400);
        let level = |ends: &[Option<i64>]| authority("ca", Path::new("ca.pem"), Ok(ends.to_vec()), now).level;
        assert_eq!(level(&[day(31)]), Level::Ok);
        assert_eq!(level(&[day(29)]), Level::Warning);
        assert_eq!(level(&[day(0)]), Level::Failure);
        assert_eq!(level(&[day(-1), day(400)]), Level::Warning, "one of two still counts");
        assert_eq!(level(&[day(-1), day(-2)]), Level::Failure);
        assert_eq!(level(&[None]), Level::Warning);
        let broken = authority("ca", Path::new("ca.pem"), Err("is no PEM".to_owned()), now);
        assert_eq!((broken.level, broken.what.as_str()), (Level::Failure, "ca.pem is no PEM"));
    }

    #[test]
    fn a_program_is_looked_for_as_a_child_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("client");
        fs::write(&bin, "").unwrap();
        let search = Some(dir.path().as_os_str());
        assert_eq!(found(Path::new("client"), search), None, "it cannot be run");
        fs::set_permissions(&bin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(found(Path::new("client"), search).as_deref(), Some(bin.as_path()));
        assert_eq!(found(&bin, None).as_deref(), Some(bin.as_path()));
        assert_eq!(found(Path::new("client"), None), None);
        assert_eq!(found(dir.path(), None), None, "a folder is no program");
        assert_eq!(client(Path::new("client"), None).level, Level::Failure);
    }
}
