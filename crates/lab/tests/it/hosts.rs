//! Tests of the library: links, limits, clean-up.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::{HOSTS_MAX, Host, Lab, LabError, Limits, Link, Measured, Pair, Shaper};

use crate::support::{PATIENCE, groups_of, lab_for, network_name};

/// The measurement, even if it is out of bounds: the machine may be busy.
fn measured(pair: &Pair) -> Measured {
    match pair.verify() {
        Ok(measured) => measured,
        Err(LabError::FarOff { measured, .. }) => *measured,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a byte from one host to the other, and returns the address it came from.
fn reaches(from: &Host, to: &Host) -> std::net::IpAddr {
    let listener = to.run(|| TcpListener::bind((to.address(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut ours = from.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    let (mut theirs, peer) = listener.accept().unwrap();
    ours.write_all(&[7]).unwrap();
    let mut byte = [0];
    theirs.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [7]);
    peer.ip()
}

#[test]
fn a_pair_is_as_fast_as_requested_and_no_faster() {
    // Slow enough for a busy machine, and shaped by the kernel alone.
    let link: Link = "200mbit".parse().unwrap();
    let Some(lab) = lab_for(&link) else { return };
    let pair = lab.pair(&link).unwrap();
    assert_eq!(pair.a.shaper(), Shaper::Tbf);
    let measured = measured(&pair);
    for mbit_per_s in [measured.mbit_per_s.a_to_b, measured.mbit_per_s.b_to_a] {
        assert!((100.0..220.0).contains(&mbit_per_s), "{measured}");
    }
}

#[test]
fn a_link_can_change_its_bandwidth_in_use() {
    let (fast, slow): (Link, Link) = ("200mbit".parse().unwrap(), "20mbit".parse().unwrap());
    let Some(lab) = lab_for(&fast) else { return };
    let pair = lab.pair(&fast).unwrap();
    pair.reshape(&slow).unwrap();
    let cut = measured(&pair);
    // Nearer to the new rate than to the old one: on a busy machine, the times are inexact.
    assert!(cut.mbit_per_s.a_to_b < 60.0 && cut.mbit_per_s.b_to_a < 60.0, "{cut}");
    pair.reshape(&fast).unwrap();
    // Change it while its queue is full, too: the queued bytes must arrive.
    let listener = pair.b.run(|| TcpListener::bind((pair.b.address(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut ours = pair.a.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
    let sending = std::thread::spawn(move || ours.write_all(&vec![7; 8 << 20]));
    let (mut theirs, _) = listener.accept().unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut first = vec![0; 2 << 20];
    theirs.read_exact(&mut first).unwrap();
    pair.reshape(&slow).unwrap();
    let mut rest = Vec::new();
    assert_eq!(theirs.read_to_end(&mut rest).unwrap(), 6 << 20);
    sending.join().unwrap().unwrap();
    pair.reshape(&fast).unwrap();
    let back = measured(&pair);
    assert!(back.mbit_per_s.a_to_b > 100.0, "{back}");
    let local = lab.pair(&Link::local()).unwrap();
    assert!(matches!(local.reshape(&slow), Err(LabError::Reshape { .. })));
}

#[test]
fn lan_reports_an_omitted_delay() {
    let Some(lab) = lab_for(&Link::lan()) else { return };
    let pair = lab.pair(&Link::lan()).unwrap();
    let measured = measured(&pair);
    // A busy machine may be slower than the link; none is faster.
    assert!(measured.mbit_per_s.a_to_b < 1100.0, "{measured}");
    assert_eq!(measured.left_out.is_some(), pair.a.shaper() == Shaper::Tbf, "{measured}");
    assert!(measured.left_out.is_some() || measured.rtt_ms.min >= 0.59, "{measured}");
}

#[test]
fn wan_has_its_delay_and_loss() {
    let link: Link = "wan,2%".parse().unwrap();
    let Some(lab) = lab_for(&link) else { return };
    let measured = measured(&lab.pair(&link).unwrap());
    assert!(measured.rtt_ms.min >= 49.0, "{measured}");
    assert!(measured.mbit_per_s.a_to_b < 110.0, "{measured}");
    for loss in [measured.loss.a_to_b, measured.loss.b_to_a] {
        assert!((0.005..0.05).contains(&loss), "{measured}");
    }
}

#[test]
fn three_hosts_reach_each_other() {
    for link in [Link::local(), Link::fast(), Link::wan()] {
        let Some(lab) = lab_for(&link) else { continue };
        let hosts = lab.hosts(3, &link).unwrap();
        for from in &hosts {
            for to in hosts.iter().filter(|to| to.name() != from.name()) {
                assert_eq!(reaches(from, to), from.address(), "{link}: {} to {}", from.name(), to.name());
            }
        }
    }
}

#[test]
fn one_of_three_hosts_gets_the_whole_bandwidth() {
    let link: Link = "100mbit".parse().unwrap();
    let Some(lab) = lab_for(&link) else { return };
    let hosts = lab.hosts(3, &link).unwrap();
    match lab::verify(&hosts[0], &hosts[2]) {
        Ok(_) => {}
        Err(LabError::FarOff { measured, .. }) => {
            // A busy machine does not fill the link, but gets more than the third that one of three would have.
            assert!((50.0..110.0).contains(&measured.mbit_per_s.a_to_b), "{measured}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// The name of a host's network. The host runs a program.
fn network_of(host: &Host) -> String {
    let output = host.command("cat").arg("/proc/self/cgroup").output().unwrap();
    network_name(&String::from_utf8(output.stdout).unwrap())
}

/// How often a host of a network has been throttled.
fn times_throttled(network: &str, host: &Host) -> u64 {
    let files = groups_of(network).into_iter().map(|group| group.join(host.name()).join("cpu.stat"));
    let stat =
        files.filter_map(|file| fs::read_to_string(file).ok()).find(|text| text.contains("nr_throttled"));
    let stat = stat.expect("a group with the cpu controller");
    let times = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
    times.parse().unwrap()
}

#[test]
fn a_limited_host_is_throttled() {
    let Some(lab) = Lab::or_skip() else { return };
    let pair = lab.pair(&Link::local()).unwrap();
    pair.b.limit(&Limits { cpus: Some(0.2), memory_bytes: Some(64 << 20), ..Limits::default() }).unwrap();
    let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
    let throttled = |host: &Host| {
        host.command("sh").args(["-c", spin]).status().unwrap();
        times_throttled(&network_of(host), host)
    };
    assert_eq!(throttled(&pair.a), 0);
    assert!(throttled(&pair.b) > 0);
    // A shell that keeps 256 MiB in a variable is killed.
    let hoard = "x=$(head -c 268435456 /dev/zero | tr '\\0' x); echo kept";
    let hoarded = |host: &Host| {
        let output = host.command("bash").args(["-c", hoard]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().contains("kept")
    };
    assert!(hoarded(&pair.a));
    assert!(!hoarded(&pair.b));
}

#[test]
fn threads_of_a_limited_host_share_its_processor_time() {
    let Some(lab) = Lab::or_skip() else { return };
    let pair = lab.pair(&Link::local()).unwrap();
    pair.b.limit(&Limits { cpus: Some(0.1), ..Limits::default() }).unwrap();
    let spin = || {
        let ends = Instant::now() + Duration::from_millis(200);
        while Instant::now() < ends {}
        Ok(())
    };
    // Its processes have the limit, other threads do not.
    let network = network_of(&pair.a);
    pair.b.run(spin).unwrap();
    assert_eq!(times_throttled(&network, &pair.b), 0);
    let both = || {
        let other = std::thread::spawn(spin);
        spin()?;
        other.join().map_err(|_| io::Error::other("the thread panicked"))?
    };
    match pair.b.run_limited(both) {
        Ok(()) => assert!(times_throttled(&network, &pair.b) > 0),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
    }
}

#[test]
fn invalid_limits_and_host_counts_are_refused() {
    let Some(lab) = Lab::or_skip() else { return };
    let pair = lab.pair(&Link::local()).unwrap();
    let refused = pair.a.limit(&Limits { cpus: Some(0.0), ..Limits::default() });
    assert!(matches!(refused, Err(LabError::Limit(_))), "{refused:?}");
    for count in [0, HOSTS_MAX + 1] {
        let refused = lab.hosts(count, &Link::local());
        assert!(matches!(refused, Err(LabError::Hosts { .. })), "{refused:?}");
    }
}

#[test]
fn processes_on_hosts_end_with_the_network() {
    for link in [Link::local(), Link::fast(), Link::wan()] {
        let Some(lab) = lab_for(&link) else { continue };
        let pair = lab.pair(&link).unwrap();
        // The first `sleep` is an orphan: only the lab knows of it.
        let line = "cat /proc/self/cgroup; echo; (sleep 1000 &) ; exec sleep 1000";
        let mut child = pair.b.command("sh").args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut cgroups = String::new();
        while stdout.read_line(&mut cgroups).unwrap() > 1 {}
        let network = network_name(&cgroups);
        assert!(!groups_of(&network).is_empty());
        drop(pair.a);
        assert!(child.try_wait().unwrap().is_none(), "one host keeps the network alive");
        drop(pair.b);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert_eq!(crate::support::rest(stdout), "");
        assert_eq!(groups_of(&network), [""; 0].map(std::path::PathBuf::from), "{link}");
    }
}
