//! Real clients, where they are installed: `LIGHTSHIP_FLIGHT_PYTHON` is a Python with `adbc-driver-flightsql` and
//! `pyarrow`, `LIGHTSHIP_FLIGHT_JDBC` the file of `flight-sql-jdbc-driver`.

use std::env::var_os;
use std::path::PathBuf;
use std::process::Command;

use lightship_flight::FlightConfig;

use super::Running;

const TOKEN: &str = "secret";

async fn run(mut command: Command, script: &str) {
    let running = Running::new(FlightConfig { tokens: vec![TOKEN.into()], ..FlightConfig::default() }).await;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/clients").join(script);
    command.arg(script).arg("127.0.0.1").arg(running.address.port().to_string()).args([TOKEN, "target"]);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    running.stop().await;
}

#[tokio::test]
async fn python() {
    let Some(python) = var_os("LIGHTSHIP_FLIGHT_PYTHON") else { return };
    run(Command::new(python), "flight.py").await;
}

#[tokio::test]
async fn jdbc() {
    let Some(driver) = var_os("LIGHTSHIP_FLIGHT_JDBC") else { return };
    let mut java = Command::new("java");
    java.arg("--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED")
        .arg("-cp")
        .arg(driver);
    run(java, "FlightJdbc.java").await;
}
