//! What an agent costs: processor time of a sample, with its datagrams, as it is taken at 1 and at 100 a second.
//!
//! `cargo run --release -p lightship-monitor --example agent_cost`
#![allow(clippy::print_stdout, reason = "it prints a table")]

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("counters are read on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use lightship_monitor::datagram::{DatagramHeader, Keys, SealableBody};
    use lightship_monitor::{Agent, AgentOptions, Watch, monotonic_ns, unix_ns};

    /// How often a process that is awake runs.
    const AWAKE_EVERY: Duration = Duration::from_millis(200);
    const WAKES: &str = "--wakes";

    pub(super) fn main() -> io::Result<()> {
        if std::env::args().any(|argument| argument == WAKES) {
            loop {
                std::thread::sleep(AWAKE_EVERY);
            }
        }
        println!("                                CPU us per sample                    datagrams");
        println!("case                    a second   median      max  % of a core   number   bytes");
        measure("host only", Watch::Nothing)?;
        for (count, awake) in [(10, false), (300, false), (300, true)] {
            let processes = Processes::start(count, awake)?;
            let state = if awake { "awake" } else { "asleep" };
            measure(&format!("{count} processes {state}"), Watch::Processes(processes.pids()))?;
        }
        let sockets = sockets(500)?;
        measure("1000 sockets", Watch::Processes(vec![std::process::id()]))?;
        drop(sockets);
        let others = Processes::start(2000, false)?;
        measure("2000 others by name", Watch::Names(vec!["nobody".into()]))?;
        let result = measure("busiest 300 of 2000", Watch::Busiest);
        drop(others);
        result
    }

    fn measure(case: &str, watch: Watch) -> io::Result<()> {
        for (rate, samples) in [(1, 10), (100, 300)] {
            let interval = Duration::from_secs(1) / rate;
            let options = AgentOptions {
                watch: watch.clone(),
                interval_ns: interval.as_nanos() as u64,
                ..AgentOptions::new("cost")
            };
            let mut agent = Agent::new(options, unix_ns());
            let (keys, header) = (Keys::of("token"), DatagramHeader::default());
            // The first sample opens files.
            agent.sample(monotonic_ns());
            let began = Instant::now();
            let (mut times, mut datagrams, mut bytes) = (Vec::new(), 0, 0);
            for number in 1..=samples {
                std::thread::sleep((began + interval * number).saturating_duration_since(Instant::now()));
                let before = thread_cpu();
                let sample = agent.sample(monotonic_ns());
                for body in SealableBody::of_sample(&sample).0 {
                    bytes += body.seal(&header, &keys).len();
                    datagrams += 1;
                }
                times.push(thread_cpu() - before);
            }
            let sum: Duration = times.iter().sum();
            times.sort_unstable();
            let us = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
            println!(
                "{case:<24}{rate:>8} {:>8.0} {:>8.0} {:>12.3} {:>8.1} {:>7}",
                us(times.get(times.len() / 2)),
                us(times.last()),
                sum.as_secs_f64() * 100.0 / began.elapsed().as_secs_f64(),
                f64::from(datagrams) / f64::from(samples),
                bytes / samples as usize,
            );
        }
        Ok(())
    }

    fn thread_cpu() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }

    /// Processes that are ended on drop.
    struct Processes(Vec<Child>);

    impl Processes {
        fn start(count: usize, awake: bool) -> io::Result<Self> {
            let mut this = Self(Vec::new());
            for _ in 0..count {
                let mut command = match awake {
                    true => {
                        let mut command = Command::new(std::env::current_exe()?);
                        command.arg(WAKES);
                        command
                    }
                    false => {
                        let mut command = Command::new("sleep");
                        command.arg("600");
                        command
                    }
                };
                this.0.push(command.stdin(Stdio::null()).spawn()?);
            }
            Ok(this)
        }

        fn pids(&self) -> Vec<u32> {
            self.0.iter().map(Child::id).collect()
        }
    }

    impl Drop for Processes {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Connections of this process to itself: two sockets each.
    fn sockets(count: usize) -> io::Result<Vec<(TcpStream, TcpStream)>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        (0..count).map(|_| Ok((TcpStream::connect(address)?, listener.accept()?.0))).collect()
    }
}
