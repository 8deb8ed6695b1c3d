//! The `lightship` command: [`lightship_cli`] with the allocator of a long-running process.

mod allocator;

fn main() -> std::process::ExitCode {
    lightship_cli::run(std::env::args_os()).into()
}
