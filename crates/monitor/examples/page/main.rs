//! Serves the page with modelled hosts and queries, to look at it: `cargo run -p lightship-monitor --example page`.
//!
//! All data is modelled. An address may be given, such as `127.0.0.1:4191`; with `--once` the world stands still after
//! its first ten minutes.

mod modelled;

use std::time::Duration;

use lightship_monitor::http::{HttpOptions, serve};
use lightship_monitor::monotonic_ns;

use crate::modelled::World;

/// What has happened before the page is served.
const BEFORE_NS: u64 = 600_000_000_000;

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() -> std::io::Result<()> {
    let (mut address, mut goes_on) = ("127.0.0.1:4191".to_owned(), true);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--once" => goes_on = false,
            _ => address = argument,
        }
    }
    let now_ns = monotonic_ns();
    let mut world = World::new(now_ns.saturating_sub(BEFORE_NS));
    world.advance(now_ns);
    let recorder = world.recorder.clone();
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("http://{}/ shows modelled data", listener.local_addr()?);
    if goes_on {
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(250));
                world.advance(monotonic_ns());
            }
        });
    }
    serve(listener, recorder, HttpOptions::new("modelled data"), std::future::pending()).await
}
