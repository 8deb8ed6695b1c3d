#!/bin/sh
# Runs the fuzz targets one after the other: fuzz/run.sh SECONDS [TARGET...]
#
# Builds with nightly Rust and the same instrumentation as cargo-fuzz, which need not be installed. The targets
# between_nodes, location and sql need crates that take many minutes to build; they run only with FEATURES=engine.
# The golden files are the seeds.
set -eu
cd "$(dirname "$0")"
seconds=${1:?seconds for each target}
shift
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1"
${CARGO:-cargo} +nightly build --locked --target "$host" ${FEATURES:+--features "$FEATURES"}

golden=../crates/wire/testdata/v2
mkdir -p corpus/control corpus/message
cp "$golden"/*.bin corpus/control/
length=$(wc -c < "$golden/every-type.schema.bin")
for message in "$golden"/every-type.*.bin; do
    case $message in *.schema.bin) continue ;; esac
    {
        # shellcheck disable=SC2059
        printf "\\$(printf %o $((length & 255)))\\$(printf %o $((length >> 8)))"
        cat "$golden/every-type.schema.bin" "$message"
    } > "corpus/message/$(basename "$message")"
done

if [ $# -eq 0 ]; then
    for target in fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        [ -x "target/$host/debug/$target" ] && set -- "$@" "$target"
    done
fi
for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "== $target"
    "target/$host/debug/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" \
        -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1
done
