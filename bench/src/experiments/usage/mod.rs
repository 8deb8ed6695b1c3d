//! Where the time of queries goes, on nodes whose hardware is known because it is limited on purpose.
//!
//! [`nodes()`] repeats the experiment of the paper that `lightship-usage` follows, [`faults()`] makes one thing slow at a
//! time, and [`cost()`] measures what the agents cost. The page begins with the targets of all three.

mod cluster;
mod collect;
mod cost;
mod faults;
mod nodes;
mod outcome;
mod pages;
mod postgres;
mod predictions;
mod site;
mod slow;
mod system;
mod targets;
mod traffic;

use std::fs;

use lab::Lab;

use self::outcome::Rows;
use crate::settings::Settings;
use crate::{Result, report};

/// Turns the accounting of waits for disks on, and off again if it was off: the agents need it.
struct Delays(Option<String>);

impl Delays {
    const FILE: &str = "/proc/sys/kernel/task_delayacct";

    fn count() -> Self {
        let before = fs::read_to_string(Self::FILE).ok();
        if let Err(error) = fs::write(Self::FILE, "1") {
            eprintln!("waits for disks are not counted: {}: {error}", Self::FILE);
        }
        Self(before)
    }
}

impl Drop for Delays {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = fs::write(Self::FILE, before);
        }
    }
}

pub(crate) fn nodes(settings: &Settings) -> Result<()> {
    let load = report::load();
    targets::publish(settings)?;
    let _delays = Delays::count();
    let mut rows = Rows::open(&settings.results(), nodes::NAME, nodes::DIMENSIONS)?;
    nodes::measure(settings, &Lab::new()?, &mut rows)?;
    pages::nodes_section(settings, &load, &rows)?;
    pages::what_if_section(settings, &load)?;
    targets::publish(settings)
}

pub(crate) fn faults(settings: &Settings) -> Result<()> {
    let load = report::load();
    targets::publish(settings)?;
    let _delays = Delays::count();
    let mut rows = Rows::open(&settings.results(), faults::NAME, faults::DIMENSIONS)?;
    faults::measure(settings, &Lab::new()?, &mut rows)?;
    pages::faults_section(settings, &load, &rows)?;
    targets::publish(settings)
}

pub(crate) fn cost(settings: &Settings) -> Result<()> {
    let load = report::load();
    targets::publish(settings)?;
    let results = cost::measure(settings)?;
    pages::cost_section(settings, &load, &results)?;
    targets::publish(settings)
}
