//! The time for which the processor limit of control groups held the threads of a process back.
//!
//! The kernel counts it for a group, as the time for which the group had used up its quota. Its threads that were ready
//! to run waited meanwhile, and the scheduler's statistics count that as any other wait for a processor.

use std::path::{Path, PathBuf};

use super::file::{KernelFile, Roots, TextBuffer, reason};

/// Samples after which limits are looked for again: they can be set at any time.
const SAMPLES_PER_LOOK: u8 = 10;
/// The most groups above each other that are read.
const GROUPS_MAX: usize = 32;

/// A group with a limit.
#[derive(Debug)]
struct Limited {
    path: PathBuf,
    stat: KernelFile,
    throttled_ns: Option<u64>,
}

impl Limited {
    /// By how much its time without quota has grown since the last reading.
    fn grown_ns(&mut self, buffer: &mut TextBuffer) -> u64 {
        let total_ns = self.stat.read(buffer).ok().and_then(throttled_ns);
        let before_ns = self.throttled_ns;
        self.throttled_ns = total_ns.or(before_ns);
        total_ns.zip(before_ns).map_or(0, |(total_ns, before_ns)| total_ns.saturating_sub(before_ns))
    }
}

/// Reader of one process's limits.
#[derive(Debug)]
pub(super) struct Quota {
    /// Its groups, in `/proc/PID/cgroup`.
    groups: PathBuf,
    sys: PathBuf,
    keep: bool,
    limited: Vec<Limited>,
    looks: u8,
    waited_ns: u64,
    read_ns: u64,
    held_ns: u64,
}

impl Quota {
    pub(super) fn new(roots: &Roots, folder: &Path, keep: bool) -> Self {
        let (groups, sys) = (folder.join("cgroup"), roots.sys.clone());
        Self { groups, sys, keep, limited: Vec::new(), looks: 0, waited_ns: 0, read_ns: 0, held_ns: 0 }
    }

    /// How long limits held threads back, of the `waited_ns` that all threads have waited for processors so far.
    ///
    /// # Errors
    /// A reason in words.
    pub(super) fn read(
        &mut self,
        now_ns: u64,
        waited_ns: u64,
        buffer: &mut TextBuffer,
    ) -> Result<u64, String> {
        if self.looks == 0 {
            self.look(buffer)?;
            self.looks = SAMPLES_PER_LOOK;
        }
        self.looks -= 1;
        let throttled_ns: u64 = self.limited.iter_mut().map(|group| group.grown_ns(buffer)).sum();
        let waited_more_ns = waited_ns.saturating_sub(self.waited_ns);
        let passed_ns = now_ns.saturating_sub(self.read_ns).max(1);
        // The kernel adds up the processors of the group. No thread was held back for longer than the time that passed.
        let threads = waited_more_ns.div_ceil(passed_ns);
        let held_ns = throttled_ns.min(passed_ns).saturating_mul(threads).min(waited_more_ns);
        self.held_ns = self.held_ns.saturating_add(held_ns);
        (self.waited_ns, self.read_ns) = (waited_ns, now_ns);
        Ok(self.held_ns)
    }

    /// Finds the groups of the process that have a limit.
    fn look(&mut self, buffer: &mut TextBuffer) -> Result<(), String> {
        let text = std::fs::read_to_string(&self.groups).map_err(|error| reason(&self.groups, &error))?;
        let mut found = Vec::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let roots = match controllers.split(',').any(|name| name == "cpu") {
                true => vec![self.sys.join("fs/cgroup/cpu")],
                false if controllers.is_empty() => {
                    vec![self.sys.join("fs/cgroup"), self.sys.join("fs/cgroup/unified")]
                }
                false => continue,
            };
            let relative = path.trim_start_matches('/');
            // A path that leads out of what this container can see.
            if relative.split('/').any(|part| part == "..") {
                continue;
            }
            for root in roots {
                let group = root.join(relative);
                let groups = group.ancestors().take_while(|group| group.starts_with(&root));
                found.extend(
                    groups.take(GROUPS_MAX).filter(|group| has_limit(group, buffer)).map(Path::to_owned),
                );
            }
        }
        self.limited.retain(|group| found.contains(&group.path));
        for path in found {
            if !self.limited.iter().any(|group| group.path == path) {
                let stat = KernelFile::new(path.join("cpu.stat"), self.keep);
                self.limited.push(Limited { path, stat, throttled_ns: None });
            }
        }
        Ok(())
    }
}

/// Whether a group has a limit, in version 1 or 2 of the control groups.
fn has_limit(group: &Path, buffer: &mut TextBuffer) -> bool {
    let one = buffer.read_path(&group.join("cpu.cfs_quota_us"));
    let has_quota = one.is_ok_and(|text| text.trim().parse::<i64>().is_ok_and(|quota| quota > 0));
    let has_max =
        |text: &str| text.split_whitespace().next().is_some_and(|quota| quota.parse::<u64>().is_ok());
    has_quota || buffer.read_path(&group.join("cpu.max")).is_ok_and(has_max)
}

/// The time without quota in `cpu.stat`.
fn throttled_ns(text: &str) -> Option<u64> {
    text.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_time", ns) => ns.trim().parse().ok(),
        ("throttled_usec", us) => us.trim().parse::<u64>().ok()?.checked_mul(1000),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A process in the group `/a/b`, below which nothing else is.
    fn folder(cgroup: &str) -> (tempfile::TempDir, Quota) {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { proc: folder.path().join("proc"), sys: folder.path().join("sys") };
        let process = roots.proc.join("7");
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("cgroup"), cgroup).unwrap();
        let quota = Quota::new(&roots, &process, true);
        (folder, quota)
    }

    fn write(folder: &tempfile::TempDir, path: &str, text: &str) {
        let path = folder.path().join("sys/fs/cgroup").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn threads_wait_for_the_quota_as_long_as_their_group_has_none() {
        let (folder, mut quota) = folder("4:cpu,cpuacct:/a/b\n1:memory:/c\n");
        let mut buffer = TextBuffer::default();
        write(&folder, "cpu/a/b/cpu.cfs_quota_us", "1200\n");
        write(&folder, "cpu/a/cpu.cfs_quota_us", "-1\n");
        let stat =
            |ns: u64| write(&folder, "cpu/a/b/cpu.stat", &format!("nr_periods 5\nthrottled_time {ns}\n"));
        stat(500 * MS);
        // What was before the first reading is not known.
        assert_eq!(quota.read(1000 * MS, 400 * MS, &mut buffer), Ok(0));
        stat(580 * MS);
        assert_eq!(quota.read(1100 * MS, 490 * MS, &mut buffer), Ok(80 * MS), "10 ms were another wait");
        stat(680 * MS);
        // Two threads.
        assert_eq!(quota.read(1200 * MS, 690 * MS, &mut buffer), Ok(280 * MS));
        // It was held back, but this process did not want to run.
        stat(780 * MS);
        assert_eq!(quota.read(1300 * MS, 690 * MS, &mut buffer), Ok(280 * MS));
    }

    #[test]
    fn a_limit_of_version_2_can_be_set_later() {
        let (folder, mut quota) = folder("0::/a/b\n");
        let mut buffer = TextBuffer::default();
        write(&folder, "a/b/cpu.max", "max 100000\n");
        write(&folder, "a/b/cpu.stat", "usage_usec 5\nthrottled_usec 0\n");
        assert_eq!(quota.read(MS, 0, &mut buffer), Ok(0));
        write(&folder, "a/b/cpu.max", "50000 100000\n");
        let mut held_ns = 0;
        for number in 1..=2 * u64::from(SAMPLES_PER_LOOK) {
            write(&folder, "a/b/cpu.stat", &format!("usage_usec 5\nthrottled_usec {}\n", number * 500));
            held_ns = quota.read((number + 1) * MS, number * MS, &mut buffer).unwrap();
        }
        assert_eq!(held_ns, u64::from(SAMPLES_PER_LOOK) * MS / 2);
    }

    #[test]
    fn without_a_limit_nothing_is_held_back_and_without_groups_it_is_not_known() {
        let (_folder, mut quota) = folder("3:cpu:/../x\n2:io:/a\n");
        assert_eq!(quota.read(MS, MS, &mut TextBuffer::default()), Ok(0));
        let missing = Path::new("/no/such/process");
        let mut quota = Quota::new(&Roots::default(), missing, false);
        assert!(quota.read(MS, MS, &mut TextBuffer::default()).is_err());
    }
}
