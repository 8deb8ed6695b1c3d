//! Control groups: what a host's processes are kept in, limited and killed by.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::LabError;
use crate::limits::{Limits, Setting, Version, disks};

/// The controllers that [`Limits`] needs, by the names of version 2.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "io"];
/// The file that moves whoever writes to it.
const PROCESSES: &str = "cgroup.procs";

/// A mounted tree of groups, at the group that ours go under.
#[derive(Debug, Clone, PartialEq)]
struct Hierarchy {
    at: PathBuf,
    version: Version,
    controllers: Vec<&'static str>,
}

/// The groups of one network: one root in each hierarchy, hosts below it.
#[derive(Debug)]
pub(crate) struct Tree {
    /// `at` is the network's own root.
    roots: Vec<Hierarchy>,
}

/// One host's group.
#[derive(Debug)]
pub(crate) struct Group {
    places: Vec<Hierarchy>,
    doors: Arc<[File]>,
}

impl Tree {
    /// Where a new tree would be. Nothing is made yet, so that a guardian can be
    /// told first.
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

    /// A group of its own for the host `name`.
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
            // Whether a missing controller is needed, either version's words tell.
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

    fn of(&self, controller: &str) -> Option<&Hierarchy> {
        self.places.iter().find(|place| place.controllers.contains(&controller))
    }
}

/// Where this process may make groups: below its own in version 1, so that limits
/// it is under go on to hold; at the mount in version 2, where a group of processes
/// can't have limited groups below it.
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
    // Without any controller, a group still says which processes are ours.
    match found.iter().any(|hierarchy| !hierarchy.controllers.is_empty()) {
        true => found.retain(|hierarchy| !hierarchy.controllers.is_empty()),
        false => found.retain(|hierarchy| hierarchy.version == Version::Two),
    }
    Ok(found)
}

/// Reads a line of `/proc/self/mountinfo` (proc(5)), if it is of control groups.
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
            // A container sees a part of the tree, and its own path from the top of all.
            let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
            let at = at.join(below.trim_start_matches('/'));
            Some(Hierarchy { at, version: Version::One, controllers: named(controllers) })
        }
        _ => None,
    }
}

/// Those of [`CONTROLLERS`] that are among `names`, of either version.
fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'static str> {
    let names: Vec<&str> = names.into_iter().collect();
    let has = |wanted: &str| names.contains(&wanted) || wanted == "io" && names.contains(&"blkio");
    CONTROLLERS.into_iter().filter(|controller| has(controller)).collect()
}

/// Version 2 gives the groups below one only what it says here.
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
    // Version 1 lets no process in before it is said where it may run.
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
    fn mounts_are_read() {
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
    fn controllers_have_the_names_of_version_two() {
        assert_eq!(named(["rw", "blkio"]), ["io"]);
        assert_eq!(named(["memory", "cpuset", "pids", "cpu", "io"]), CONTROLLERS);
    }
}
