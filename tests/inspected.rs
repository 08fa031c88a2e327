//! What a Docker engine (20.10) really said of containers in every condition, cut down to what is near to what is read.

use std::path::Path;

use monky_deployd::effects::Scrub;
use monky_deployd::effects::containers::{Container, ContainerState, Health, RestartPolicy, parse_inspect};

struct Nothing;

impl Scrub for Nothing {
    fn scrub(&self, text: &str) -> String {
        text.to_owned()
    }
}

#[test]
fn every_condition_is_read_as_docker_means_it() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/docker/inspect-20.10.json");
    let containers = parse_inspect(&std::fs::read(file).unwrap(), &Nothing).unwrap();
    let of =
        |service: &str| -> &Container { containers.iter().find(|container| container.service == service).unwrap() };
    let seen = |service| {
        let Container { state, health, exit_code, restart_policy, .. } = of(service);
        (*state, *health, *exit_code, *restart_policy)
    };
    use ContainerState::{Created, Exited, Restarting, Running};
    assert_eq!(seen("healthy"), (Running, Some(Health::Healthy), 0, RestartPolicy::UnlessStopped));
    assert_eq!(seen("unhealthy"), (Running, Some(Health::Unhealthy), 0, RestartPolicy::No));
    assert_eq!(seen("starting"), (Running, Some(Health::Starting), 0, RestartPolicy::No));
    assert_eq!(seen("plain"), (Running, None, 0, RestartPolicy::Always));
    assert_eq!(seen("job"), (Exited, None, 0, RestartPolicy::No));
    assert_eq!(seen("failed"), (Exited, None, 3, RestartPolicy::OnFailure));
    assert_eq!(seen("flapping"), (Restarting, None, 4, RestartPolicy::Always));
    assert_eq!(seen("broken"), (Created, None, 127, RestartPolicy::No));
    assert!(of("broken").error.as_str().contains("no such file or directory"));
    assert!(of("flapping").restart_count > 1);
    assert_eq!(of("failed").restart_count, 1);
    assert_eq!((of("broken").started, of("broken").started_at.as_str()), (None, "0001-01-01T00:00:00Z"));
    let probe = |service: &str| of(service).probe.as_ref().map(|probe| (probe.exit_code, probe.streak, probe.retries));
    assert_eq!(probe("unhealthy"), Some((1, 6, 1)));
    assert_eq!(probe("healthy"), Some((0, 0, 3)));
    assert_eq!((probe("starting"), probe("plain")), (None, None));
    let plain = of("plain");
    assert_eq!((plain.name.as_str(), plain.id.len()), ("example-plain-1", 64));
    assert!(plain.image_id.starts_with("sha256:"));
    assert!(plain.started.is_some());
}
