//! `monky-deployd`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Under the name `docker` this is the stand-in for it.
    #[cfg(feature = "sandbox")]
    if monky_deployd::sandbox::docker::is_called(std::env::args_os().next().as_deref()) {
        return monky_deployd::sandbox::docker::main(std::env::args_os());
    }
    monky_deployd::cli::main()
}
