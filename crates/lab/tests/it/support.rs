//! Creates labs, and looks for leftover groups and processes.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lab::{Lab, Link};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a lab that can create this link without installing anything, or prints why there is none.
pub(crate) fn lab_for(link: &Link) -> Option<Lab> {
    let lab = Lab::or_skip()?;
    if lab.needs_install(link) {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {link} needs rattan; `cargo run -p lab -- verify --link {link}` installs it"
        );
        return None;
    }
    Some(lab)
}

/// Reads the rest of a stream. It ends when all processes that could write to it have ended.
pub(crate) fn rest(mut stream: impl Read + Send + 'static) -> String {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive.recv_timeout(PATIENCE).expect("the stream ends")
}

/// The name of the network in `/proc/self/cgroup`.
pub(crate) fn network_name(cgroups: &str) -> String {
    let name = cgroups.split(['/', '\n']).find(|part| part.starts_with("lab-"));
    name.expect("a group of the lab's").to_owned()
}

/// The groups of a network in all hierarchies.
pub(crate) fn groups_of(network: &str) -> Vec<PathBuf> {
    fn visit(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name() == name {
                found.push(entry.path());
            }
            visit(&entry.path(), name, found);
        }
    }
    let mut found = Vec::new();
    visit("/sys/fs/cgroup".as_ref(), network, &mut found);
    found
}

/// Processes in a network namespace, given as `net:[…]`.
pub(crate) fn processes_in(namespace: &str) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    processes
        .filter(|path| fs::read_link(path.join("ns/net")).is_ok_and(|ns| ns.as_os_str() == namespace))
        .collect()
}
