//! Docker: does it answer this user, is it new enough, is the project's name free, is there room for images.
//!
//! Invariant: of what depends on something that failed it is said that it was not checked.

use std::path::Path;
use std::time::Duration;

use super::line::{Block, Line};
use super::state_dir::{DOCKER_ROOM, room, space};
use crate::drivers::docker::cli::Docker;
use crate::effects::meta::version_at_least;
use crate::effects::{RunFault, Scrub, counted};
use crate::fsm::stages::COMPOSE_MIN;

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// What depends on Docker, in the order of the lines.
const FACTS: [&str; 4] = ["docker", "compose", "project", "docker.disk"];

/// Lines that say that nobody asked.
fn unchecked(why: &str, remedy: &str) -> Vec<Line> {
    FACTS.iter().map(|fact| Line::unchecked(fact, why, remedy)).collect()
}

/// Asks it.
pub fn look(docker: &Docker, block: Block, scrub: &dyn Scrub) -> Vec<Line> {
    if let Some((why, remedy)) = block {
        return unchecked(why, remedy);
    }
    let (engine, compose_version) = docker.versions(DEADLINE, scrub);
    let mut lines = vec![daemon(&engine)];
    lines.push(match (&engine, &compose_version) {
        // What is wrong with the client itself is not for want of a plugin.
        (Err(_), Err(_)) => Line::unchecked("compose", "Docker does not answer", "mend `docker` first"),
        (_, version) => compose(version),
    });
    if engine.is_err() {
        lines.extend(unchecked("Docker does not answer", "mend `docker` first").into_iter().skip(2));
        return lines;
    }
    lines.push(project(docker.project(), docker.state_dir(), &docker.origins(DEADLINE, scrub)));
    lines.push(match docker.data_root(DEADLINE, scrub) {
        Ok(root) if root.is_dir() => room("docker.disk", &root, &space(&root), DOCKER_ROOM),
        Ok(root) => {
            let why = format!("{} cannot be seen from here", root.display());
            Line::unchecked("docker.disk", &why, "look where the engine runs, with `docker system df`")
        }
        Err(fault) => Line::unchecked("docker.disk", words(&fault), "look with `docker system df`"),
    });
    lines
}

/// What was said.
fn words(fault: &RunFault) -> &str {
    match fault {
        RunFault::Unavailable { detail } => detail.as_str(),
        RunFault::TimedOut { words, .. } if words.as_str().is_empty() => "it did not answer in time",
        RunFault::TimedOut { words, .. } | RunFault::Failed { words, .. } => words.as_str(),
    }
}

fn daemon(engine: &Result<String, RunFault>) -> Line {
    match engine {
        Ok(version) => Line::ok("docker", format!("engine {version} answers this user")),
        Err(fault) if words(fault).contains("ermission denied") => Line::failure(
            "docker",
            words(fault).to_owned(),
            "sudo usermod -aG docker monky-deployd, and run this as that user",
        ),
        Err(fault) => Line::failure(
            "docker",
            words(fault).to_owned(),
            "start it (`sudo systemctl start docker`), or mend `docker_bin` and DOCKER_HOST",
        ),
    }
}

fn compose(version: &Result<String, RunFault>) -> Line {
    let remedy = format!(
        "install the Docker Compose plugin {COMPOSE_MIN} or newer where every user finds it, such as /usr/libexec/docker/cli-plugins"
    );
    match version {
        Ok(version) if version_at_least(version, COMPOSE_MIN).unwrap_or(false) => {
            Line::ok("compose", format!("Compose {version}, {COMPOSE_MIN} or newer is needed"))
        }
        Ok(version) => {
            let what =
                format!("Compose {version} is older than {COMPOSE_MIN}, the first that prints what the agent reads");
            Line::failure("compose", what, &remedy)
        }
        // Without the program nothing can be said of its plugin; that has its own line.
        Err(RunFault::Unavailable { .. }) => {
            Line::unchecked("compose", "Docker's client cannot be run", "mend `docker` first")
        }
        Err(fault) => Line::failure("compose", words(fault).to_owned(), &remedy),
    }
}

/// Whether all containers of the project came from this state directory. Compose knows a project by its name alone: it
/// would replace another folder's containers, and remove those that are not in the bundle.
fn project(name: &str, state_dir: &Path, origins: &Result<Vec<(String, String)>, RunFault>) -> Line {
    let origins = match origins {
        Ok(origins) => origins,
        Err(fault) => return Line::unchecked("project", words(fault), "mend `docker` first"),
    };
    let strange = |origin: &&(String, String)| !Path::new(&origin.1).starts_with(state_dir);
    let strangers: Vec<_> = origins.iter().filter(strange).collect();
    match strangers.first() {
        None => Line::ok("project", format!("{name} is this agent's alone ({})", counted(origins.len(), "container"))),
        Some((container, folder)) => {
            let more = match strangers.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more are from elsewhere)"),
            };
            let what = format!(
                "{name} is another's too: container {container} is from {folder:?}{more}, and not from {}; a deploy would replace or remove what is not from there",
                state_dir.display()
            );
            let remedy = format!("remove them (`docker compose -p {name} down`), or set another `compose_project`");
            Line::failure("project", what, &remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Level;
    use super::*;
    use crate::drivers::vault::Vault;
    use crate::effects::Scrubbed;

    fn scrubbed(text: &str) -> Scrubbed {
        Scrubbed::new(&Vault::default(), text)
    }

    fn unavailable(text: &str) -> RunFault {
        RunFault::Unavailable { detail: scrubbed(text) }
    }

    #[test]
    fn a_missing_right_and_a_missing_engine_have_different_remedies() {
        let denied = daemon(&Err(unavailable("permission denied while trying to connect to the docker API")));
        assert!(denied.level == Level::Failure && denied.remedy.unwrap().contains("usermod -aG docker"));
        let down = daemon(&Err(unavailable("Cannot connect to the Docker daemon")));
        assert!(down.level == Level::Failure && down.remedy.unwrap().contains("systemctl start docker"));
        assert_eq!(daemon(&Ok("20.10.24".to_owned())).level, Level::Ok);
        let hangs = daemon(&Err(RunFault::TimedOut { after_s: 5, words: scrubbed("") }));
        assert_eq!((hangs.level, hangs.what.as_str()), (Level::Failure, "it did not answer in time"));
    }

    #[test]
    fn an_old_compose_is_a_failure_that_says_from_which_version_on() {
        assert_eq!(compose(&Ok(COMPOSE_MIN.to_owned())).level, Level::Ok);
        let old = compose(&Ok("2.20.3".to_owned()));
        assert!(old.level == Level::Failure && old.what.contains("2.21.0"), "{old:?}");
        assert_eq!(compose(&Ok("nonsense".to_owned())).level, Level::Failure);
        let none = RunFault::Failed { status: Some(125), words: scrubbed("no Compose plugin"), disk_full: false };
        assert_eq!(compose(&Err(none)).level, Level::Failure);
        assert_eq!(compose(&Err(unavailable("no such file"))).level, Level::Warning, "that is the line of `docker`");
    }

    #[test]
    fn a_container_from_another_folder_is_a_collision() {
        let judged = |folders: &[&str]| {
            let origins = folders.iter().map(|folder| ("c-1".to_owned(), (*folder).to_owned())).collect();
            project("shop", Path::new("/state"), &Ok(origins))
        };
        assert_eq!(judged(&[]).level, Level::Ok);
        assert_eq!(judged(&["/state/current", "/state/releases/abc"]).level, Level::Ok);
        let other = judged(&["/state/current", "/home/me/shop"]);
        assert!(other.level == Level::Failure && other.what.contains("/home/me/shop"), "{other:?}");
        assert!(!other.what.contains("more"), "{other:?}");
        assert!(judged(&["/a", "/b", "/c"]).what.contains("(and 2 more are from elsewhere)"));
        assert_eq!(judged(&["/state-of-another/current"]).level, Level::Failure, "a prefix of a name is no folder");
        assert_eq!(judged(&[""]).level, Level::Failure);
    }
}
