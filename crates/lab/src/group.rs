//! Control groups, which limit a host's processes and identify those to kill.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::LabError;
use crate::limits::{Limits, Setting, Version, disks};

/// The controllers that [`Limits`] needs, by their names in version 2.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "io"];
/// A process that writes 0 to this file joins the group.
const PROCESSES: &str = "cgroup.procs";
/// In version 1, a thread that writes 0 to this file joins the group alone.
const THREADS: &str = "tasks";

/// A group in a mounted hierarchy.
#[derive(Debug, Clone, PartialEq)]
struct Hierarchy {
    at: PathBuf,
    version: Version,
    controllers: Vec<&'static str>,
}

/// The groups of one network: a root in each hierarchy, with the hosts' groups below it.
#[derive(Debug)]
pub(crate) struct Tree {
    roots: Vec<Hierarchy>,
}

/// One host's group.
#[derive(Debug)]
pub(crate) struct Group {
    places: Vec<Hierarchy>,
    doors: Arc<[File]>,
}

impl Tree {
    /// Chooses the paths of a new tree. Creates nothing yet, so that a guardian can be started
    /// first.
    pub(crate) fn plan() -> Result<Self, LabError> {
        let uuid = read("/proc/sys/kernel/random/uuid".as_ref())?;
        let name = format!("lab-{}", uuid.trim());
        let mut roots = hierarchies()?;
        if roots.is_empty() {
            return Err(LabError::Controller { controller: "processes" });
        }
        roots.iter_mut().for_each(|root| root.at.push(&name));
        Ok(Self { roots })
    }

    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        self.roots.iter().map(|root| root.at.clone()).collect()
    }

    pub(crate) fn create(&self) -> Result<(), LabError> {
        for root in &self.roots {
            let parent = root.at.parent().unwrap_or(&root.at);
            delegate(root, parent)?;
            make(root)?;
            delegate(root, &root.at)?;
        }
        Ok(())
    }

    /// Creates the group of the host `name`.
    pub(crate) fn group(&self, name: &str) -> Result<Group, LabError> {
        let places: Vec<_> =
            self.roots.iter().map(|root| Hierarchy { at: root.at.join(name), ..root.clone() }).collect();
        places.iter().try_for_each(make)?;
        let doors = places.iter().map(door).collect::<Result<_, _>>()?;
        Ok(Group { places, doors })
    }
}

impl Group {
    /// Sets the limits that are `Some`.
    pub(crate) fn limit(&self, limits: &Limits) -> Result<(), LabError> {
        limits.check()?;
        let disks = disks();
        for controller in CONTROLLERS {
            let version = self.of(controller).map(|place| place.version);
            // If the controller is missing, the version does not matter: any setting needs the controller.
            let settings = limits.settings(version.unwrap_or(Version::Two), &disks);
            for setting in settings.iter().filter(|setting| setting.controller == controller) {
                let place = self.of(controller).ok_or(LabError::Controller { controller })?;
                apply(setting, &place.at)?;
            }
        }
        Ok(())
    }

    /// The files by which a process joins: it writes `0` to each.
    pub(crate) fn doors(&self) -> Arc<[File]> {
        Arc::clone(&self.doors)
    }

    /// Moves the calling thread into the group that limits its processor time. Threads that it starts follow it.
    ///
    /// # Errors
    /// If no group of version 1 has the controller: in version 2, only a whole process can be in a group with limits of
    /// all kinds.
    pub(crate) fn join_as_thread(&self) -> io::Result<()> {
        let place = self.of("cpu").filter(|place| place.version == Version::One);
        let place = place.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "only control groups of version 1 limit single threads",
            )
        })?;
        OpenOptions::new().write(true).open(place.at.join(THREADS))?.write_all(b"0")
    }

    fn of(&self, controller: &str) -> Option<&Hierarchy> {
        self.places.iter().find(|place| place.controllers.contains(&controller))
    }
}

/// Where this process may create groups: in version 1 below its own group, so that its own
/// limits still apply; in version 2 at the mount point, because a group that contains
/// processes can't have limited groups below it.
fn hierarchies() -> Result<Vec<Hierarchy>, LabError> {
    let mounts = read("/proc/self/mountinfo".as_ref())?;
    let own = read("/proc/self/cgroup".as_ref())?;
    let mut found: Vec<Hierarchy> =
        mounts.lines().filter_map(|line| hierarchy(line, &own)).filter(|h| h.at.is_dir()).collect();
    let mut taken = BTreeSet::new();
    for hierarchy in &mut found {
        if hierarchy.version == Version::Two {
            let enabled = read(&hierarchy.at.join("cgroup.controllers"))?;
            hierarchy.controllers = named(enabled.split_whitespace());
        }
        hierarchy.controllers.retain(|controller| taken.insert(*controller));
    }
    // Without any controller, a group still identifies our processes.
    match found.iter().any(|hierarchy| !hierarchy.controllers.is_empty()) {
        true => found.retain(|hierarchy| !hierarchy.controllers.is_empty()),
        false => found.retain(|hierarchy| hierarchy.version == Version::Two),
    }
    Ok(found)
}

/// Parses a line of `/proc/self/mountinfo` (proc(5)); `None` if it is not a control group mount.
fn hierarchy(mount: &str, own: &str) -> Option<Hierarchy> {
    let (fields, end) = mount.split_once(" - ")?;
    let (root, at) = (fields.split(' ').nth(3)?, Path::new(fields.split(' ').nth(4)?));
    let mut end = end.split(' ');
    match end.next()? {
        "cgroup2" => Some(Hierarchy { at: at.into(), version: Version::Two, controllers: Vec::new() }),
        "cgroup" => {
            let controllers: Vec<&str> = end.nth(1)?.split(',').collect();
            let path = own.lines().find_map(|line| {
                let (names, path) = line.split_once(':')?.1.split_once(':')?;
                names.split(',').any(|name| controllers.contains(&name)).then_some(path)
            })?;
            // A container sees only a part of the tree, but its own path from the root of the whole tree.
            let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
            let at = at.join(below.trim_start_matches('/'));
            Some(Hierarchy { at, version: Version::One, controllers: named(controllers) })
        }
        _ => None,
    }
}

/// The [`CONTROLLERS`] that are among `names`, which may be from either version.
fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'static str> {
    let names: Vec<&str> = names.into_iter().collect();
    let has = |wanted: &str| names.contains(&wanted) || wanted == "io" && names.contains(&"blkio");
    CONTROLLERS.into_iter().filter(|controller| has(controller)).collect()
}

/// Enables the controllers for the groups below `at`, as version 2 requires.
fn delegate(hierarchy: &Hierarchy, at: &Path) -> Result<(), LabError> {
    if hierarchy.version == Version::Two {
        for controller in &hierarchy.controllers {
            write(&at.join("cgroup.subtree_control"), &format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn make(place: &Hierarchy) -> Result<(), LabError> {
    fs::create_dir(&place.at).map_err(LabError::io(shown(&place.at)))?;
    // Version 1 admits no process before its processors and memory nodes are set.
    if place.version == Version::One
        && place.controllers.contains(&"cpuset")
        && let Some(parent) = place.at.parent()
    {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            write(&place.at.join(file), read(&parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

fn door(place: &Hierarchy) -> Result<File, LabError> {
    let path = place.at.join(PROCESSES);
    OpenOptions::new().write(true).open(&path).map_err(LabError::io(shown(&path)))
}

fn apply(setting: &Setting, at: &Path) -> Result<(), LabError> {
    let path = at.join(setting.file);
    if setting.optional && !path.exists() {
        return Ok(());
    }
    write(&path, &setting.value)
}

fn read(path: &Path) -> Result<String, LabError> {
    fs::read_to_string(path).map_err(LabError::io(shown(path)))
}

fn write(path: &Path, value: &str) -> Result<(), LabError> {
    let written =
        || -> io::Result<()> { OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes()) };
    written().map_err(LabError::io(format!("can't write `{value}` to {}", path.display())))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "4:memory:/user/me\n3:cpu,cpuacct:/\n0::/init.scope\n";

    #[test]
    fn mount_lines_are_parsed() {
        let at =
            |line: &str| hierarchy(line, OWN).map(|h| (h.at.display().to_string(), h.version, h.controllers));
        let line = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        assert_eq!(at(line), Some(("/sys/fs/cgroup/memory/user/me".into(), Version::One, vec!["memory"])));
        let line = "35 31 0:32 /user/me /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory";
        assert_eq!(at(line), Some(("/sys/fs/cgroup/memory/".into(), Version::One, vec!["memory"])));
        let line = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(at(line), Some(("/sys/fs/cgroup/cpu,cpuacct/".into(), Version::One, vec!["cpu"])));
        let line = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(at(line), Some(("/sys/fs/cgroup".into(), Version::Two, vec![])));
        assert_eq!(at("23 1 254:0 / / rw,relatime - ext4 /dev/vda rw"), None);
    }

    #[test]
    fn controllers_get_their_version_two_names() {
        assert_eq!(named(["rw", "blkio"]), ["io"]);
        assert_eq!(named(["memory", "cpuset", "pids", "cpu", "io"]), CONTROLLERS);
    }
}
