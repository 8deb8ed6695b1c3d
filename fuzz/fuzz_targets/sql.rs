//! Arbitrary statements, deeply nested ones and any text: each is answered or refused without a crash.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lightship_engine::{Engine, EngineConfig};
use lightship_testkit::statements;
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("threads"));

/// An engine with the table that the statements name.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("lightship-fuzz-{}.csv", std::process::id()));
    std::fs::write(&path, "a\n1\n2\n").expect("a file");
    let mut engine = Engine::new(EngineConfig::default()).expect("an engine");
    RUNTIME.block_on(engine.register_path("t", &path)).expect("a table");
    engine
});

fuzz_target!(|choices: &[u8]| {
    let sql = match choices {
        [b' ', text @ ..] => String::from_utf8_lossy(text).into_owned(),
        choices => statements::deep(&choices[..choices.len().min(24)], 6000),
    };
    let engine = &*ENGINE;
    RUNTIME.block_on(async {
        // Only planning recurses deeply, so the rows are dropped.
        if let Ok(running) = engine.query(&sql).await {
            drop(running);
        }
    });
});
