//! Requests of a client about range files, to a node.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lightship_rangefile::fuzzing::{Asked, requests};
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

fuzz_target!(|asked: Vec<Asked>| RUNTIME.block_on(requests(asked)));
