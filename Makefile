# `make demo` shows the main job, `make cluster` one query on many nodes, `make usage-demo`
# where the time of queries goes, `make test` runs every test. All work on a fresh machine with Rust.
.PHONY: demo cluster usage-demo test test-python lint clippy bench

SCALE ?= 0.1
# All that is optional is tested. `scripts/test-python.sh` builds the same.
FEATURES = lightship-cli/otlp
# Many tests wait: for a server to start, or for a time limit to pass.
export RUST_TEST_THREADS ?= $(shell expr 2 \* $$(nproc))

demo:
	@test -x target/release/lightship || echo "building (the first time takes a while, nearly all of it for DataFusion)"
	cargo build --release --locked -p lightship-cli -p xtask
	target/release/xtask demo --scale $(SCALE)

cluster:
	cargo build --release --locked -p lightship-cli -p xtask
	target/release/xtask cluster --scale $(SCALE)

usage-demo:
	cargo build --release --locked -p lightship-cli -p xtask
	target/release/xtask usage --scale $(SCALE)

# xtask comes from the build of the tests: alone, its dependencies would be built with other features, once more.
test: clippy
	./scripts/test-servers.sh
	cargo build --workspace --lib --bins --tests --locked --features $(FEATURES)
	$${CARGO_TARGET_DIR:-target}/debug/xtask tidy
	cargo test --workspace --locked --features $(FEATURES)
	./scripts/test-python.sh

# The clients in Python alone.
test-python:
	./scripts/test-servers.sh
	./scripts/test-python.sh

lint: clippy
	cargo run --locked -q -p xtask -- tidy

clippy:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --features $(FEATURES) -- -D warnings

bench:
	cargo build --release --locked -p lightship-cli -p bench
	target/release/bench transfer
