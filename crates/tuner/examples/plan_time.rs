//! Measures the time to compute a plan: `cargo run --release -p lightship-tuner --example plan_time`.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use lightship_tuner::{Bounds, Budget, Limits, Link, plan, thesis};

const TIMES: u32 = 200;

fn main() -> Result<(), lightship_tuner::TunerError> {
    let wide = Limits { message_bytes_min: 512, message_bytes_max: 16 << 20, batch_bytes_max: 1 << 30 };
    let roomy = Budget { memory_bytes_max: 1 << 30, ..Budget::default() };
    for (name, limits, budget) in [
        ("the thesis' limits", thesis::LIMITS, Budget::default()),
        ("messages of 16 MB, batches of 1 GB", wide, roomy),
    ] {
        let began = Instant::now();
        for model in [thesis::TEN_GIGABIT, thesis::FIFTY_MEGABIT] {
            let link = Link { model, rtt_seconds: model.first.constant, ..Link::default() };
            for (_, query) in thesis::QUERIES {
                for _ in 0..TIMES {
                    black_box(plan(black_box(&link), black_box(&query), &limits, &budget)?);
                }
            }
        }
        let plans = 2 * thesis::QUERIES.len() as u32 * TIMES;
        println!("{name}: {:.1} us per plan", (began.elapsed() / plans).as_secs_f64() * 1e6);
    }
    let bounds = Bounds {
        message_bytes_min: 64 << 10,
        message_bytes_max: 1 << 20,
        busy_batches: 6,
        window_batches_max: 256,
        memory_bytes_max: 64 << 20,
    };
    let began = Instant::now();
    for pace in 0..TIMES * 1000 {
        black_box(bounds.sizes(black_box(f64::from(pace) * 1e4), black_box(0.05)));
    }
    println!("sizes of a transfer: {:.3} us", (began.elapsed() / (TIMES * 1000)).as_secs_f64() * 1e6);
    Ok(())
}
