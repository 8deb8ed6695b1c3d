//! Systems other than Linux: nothing is counted, and the sources say so.

use lightship_usage::{Entry, HostSources, SubjectKind};

use crate::datagram::ProcessName;
use crate::facts::HostFacts;
use crate::options::AgentOptions;

/// No readers.
pub(crate) struct Probe(HostFacts);

impl Probe {
    pub(crate) fn new(_: &AgentOptions, sources: &mut HostSources) -> Self {
        for kind in SubjectKind::ALL {
            sources.set_unavailable(kind, kind.figures(), "counters are read on Linux only");
        }
        Self(HostFacts::default())
    }

    pub(crate) fn read(&mut self, _: u64, _: &mut HostSources) -> Vec<Entry> {
        Vec::new()
    }

    pub(crate) fn names(&self) -> Vec<ProcessName> {
        Vec::new()
    }

    pub(crate) fn facts(&self) -> &HostFacts {
        &self.0
    }
}
