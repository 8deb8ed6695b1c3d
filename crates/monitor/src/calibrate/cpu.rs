//! Measures processors and memory.

use std::convert::Infallible;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

use super::SpeedKind;
use super::pace::Pace;
use crate::counters::{Roots, TextBuffer, memory};
use crate::perf::explain;

/// Numbers of the kernel's table: 256 KiB.
const TABLE: usize = 1 << 15;
/// Steps of a work unit.
const STEPS: u32 = 1000;
/// Work units between two looks at the clock, some 200 us.
const UNITS: u32 = 64;
/// The most threads that measure all processors.
const THREADS_MAX: usize = 1024;
/// Numbers that are read from memory between two looks at the clock: 1 MiB.
const CHUNK: usize = 1 << 17;
/// The size of the largest cache, if the system does not say it.
const CACHE_BYTES: u64 = 64 << 20;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The work of the measurement: the same on all hosts. A change needs another version of the results.
struct Kernel {
    table: Vec<u64>,
    state: u64,
    sum: u64,
}

impl Kernel {
    fn new() -> Self {
        let table = (0..TABLE as u64).map(|index| index.wrapping_mul(MULTIPLIER)).collect();
        Self { table, state: MULTIPLIER, sum: 0 }
    }

    /// One work unit: a random number (xorshift, G. Marsaglia, 2003) for each step, an entry of the table that it
    /// chooses, and one of two operations on it.
    fn unit(&mut self) {
        for _ in 0..STEPS {
            let mut x = self.state;
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            self.state = x;
            if let Some(entry) = self.table.get_mut(x as usize % TABLE) {
                *entry = if *entry & 1 == 0 {
                    entry.wrapping_mul(MULTIPLIER) ^ x
                } else {
                    entry.rotate_left(7) ^ x
                };
                self.sum = self.sum.wrapping_add(*entry);
            }
        }
    }

    /// Works until a time; returns work units per second.
    fn rate(&mut self, until: Instant) -> f64 {
        let began = Instant::now();
        let mut units = 0_u64;
        loop {
            (0..UNITS).for_each(|_| self.unit());
            units += u64::from(UNITS);
            let now = Instant::now();
            if now >= until {
                black_box(self.sum);
                return units as f64 / (now - began).as_secs_f64().max(1e-9);
            }
        }
    }
}

/// Measures processors and memory; returns the number of processors.
pub(super) fn measure(pace: &mut Pace<'_>, memory_bytes_max: u64) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut kernel = Kernel::new();
    // The first units fill caches and raise the clock.
    kernel.rate(Instant::now());
    let mut cycles = Cycles::open();
    let mut counted = [Vec::new(), Vec::new()];
    let Ok(_) = pace.repeat(SpeedKind::ProcessorOne, |until| {
        let before = cycles.as_mut().ok().and_then(Cycles::read);
        let began = Instant::now();
        let rate = kernel.rate(until);
        let seconds = began.elapsed().as_secs_f64();
        let after = cycles.as_mut().ok().and_then(Cycles::read);
        if let Some(([cycles, instructions], [cycles_before, instructions_before])) = after.zip(before) {
            let (cycles, instructions) = (cycles - cycles_before, instructions - instructions_before);
            counted[0].push(cycles / instructions);
            counted[1].push(cycles / seconds);
        }
        Ok::<f64, Infallible>(rate)
    });
    let kinds = [SpeedKind::CyclesPerInstruction, SpeedKind::CyclesPerSecond];
    for (kind, mut values) in kinds.into_iter().zip(counted) {
        values.retain(|value| value.is_finite() && *value > 0.0);
        match &cycles {
            Err(reason) => pace.miss([kind], reason),
            Ok(_) if values.is_empty() => pace.miss([kind], "the processor's counters stand still"),
            Ok(_) => pace.set(kind, &mut values),
        }
    }
    if let Err(error) = pace.repeat(SpeedKind::ProcessorAll, |until| rate_of_all(processors, until)) {
        pace.miss([SpeedKind::ProcessorAll], &format!("cannot start a thread for each processor: {error}"));
    }
    measure_memory(pace, memory_bytes_max);
    u32::try_from(processors).unwrap_or(u32::MAX)
}

/// The sum of the rates of a kernel on each processor.
fn rate_of_all(processors: usize, until: Instant) -> std::io::Result<f64> {
    let mut kernels: Vec<Kernel> = (0..processors.min(THREADS_MAX)).map(|_| Kernel::new()).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(kernels.len());
        for kernel in &mut kernels {
            let builder = std::thread::Builder::new().name("calibrate".to_owned());
            threads.push(builder.spawn_scoped(scope, move || kernel.rate(until))?);
        }
        let mut sum = 0.0;
        for thread in threads {
            sum += thread.join().map_err(|_| std::io::Error::other("a thread has panicked"))?;
        }
        Ok(sum)
    })
}

fn measure_memory(pace: &mut Pace<'_>, memory_bytes_max: u64) {
    let kind = SpeedKind::MemoryRead;
    let roots = Roots::default();
    let mut buffer = TextBuffer::default();
    let text = buffer.read_path(&roots.proc.join("meminfo"));
    let available = text.ok().and_then(memory).map_or(0, |(_, available)| available);
    let cache = largest_cache(&roots.sys.join("devices/system/cpu/cpu0/cache")).unwrap_or(CACHE_BYTES);
    let wanted = cache.saturating_mul(2).max(CACHE_BYTES);
    if wanted > memory_bytes_max.min(available / 4) {
        let reason = format!("a buffer of twice the processor's cache needs {} MiB of memory", wanted >> 20);
        return pace.miss([kind], &reason);
    }
    // Not zeros: the system could give the same page for all of them.
    let numbers = vec![MULTIPLIER; (wanted / 8) as usize];
    let mut chunks = numbers.chunks(CHUNK).cycle();
    let Ok(_) = pace.repeat(kind, |until| Ok::<f64, Infallible>(read_rate(&mut chunks, until)));
}

/// Reads chunks of memory until a time; returns bytes per second.
fn read_rate<'a>(chunks: &mut impl Iterator<Item = &'a [u64]>, until: Instant) -> f64 {
    let began = Instant::now();
    let mut bytes = 0;
    loop {
        let chunk = chunks.next().unwrap_or_default();
        black_box(chunk.iter().fold(0_u64, |sum, number| sum.wrapping_add(*number)));
        bytes += size_of_val(chunk);
        let now = Instant::now();
        if now >= until {
            return bytes as f64 / (now - began).as_secs_f64().max(1e-9);
        }
    }
}

/// The size of a processor's largest cache, in bytes.
fn largest_cache(folder: &Path) -> Option<u64> {
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
    };
    std::fs::read_dir(folder).ok()?.filter_map(size).max()
}

/// Hardware counters of this thread.
struct Cycles([Counter; 2]);

impl Cycles {
    fn open() -> Result<Self, String> {
        let counter = |event| {
            Builder::new(event).observe_self().exclude_kernel(true).exclude_hv(true).enabled(true).build()
        };
        let open = || Ok(Self([counter(Hardware::CPU_CYCLES)?, counter(Hardware::INSTRUCTIONS)?]));
        open().map_err(|error| explain(&error))
    }

    /// Cycles and instructions so far.
    fn read(&mut self) -> Option<[f64; 2]> {
        let Self([cycles, instructions]) = self;
        Some([cycles.read().ok()? as f64, instructions.read().ok()? as f64])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_does_the_same_work_on_all_hosts() {
        let mut kernel = Kernel::new();
        (0..100).for_each(|_| kernel.unit());
        // Computed by another program.
        assert_eq!((kernel.state, kernel.sum), (0xdeaf_6465_dc02_951c, 0x6d7d_95cb_e4d0_2f0d));
    }

    #[test]
    fn memory_is_read_at_least_once() {
        let numbers = vec![1; CHUNK * 2];
        assert!(read_rate(&mut numbers.chunks(CHUNK).cycle(), Instant::now()) > 0.0);
    }

    #[test]
    fn the_largest_cache_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (name, size) in [("index0", "48K\n"), ("index3", "266240K\n"), ("index2", "odd")] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("size"), size).unwrap();
        }
        assert_eq!(largest_cache(folder.path()), Some(260 << 20));
        assert_eq!(largest_cache(&folder.path().join("none")), None);
    }
}
