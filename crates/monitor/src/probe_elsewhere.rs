//! Systems other than Linux: nothing is counted, and the sources say so.

use lightship_usage::Entry;

use crate::datagram::ProcessName;
use crate::options::AgentOptions;
use crate::source::{HostFacts, Scope, Sources};

/// No readers.
pub(crate) struct Probe(HostFacts);

impl Probe {
    pub(crate) fn new(_: &AgentOptions, sources: &mut Sources) -> Self {
        for scope in Scope::ALL {
            sources.unavailable(scope, scope.figures(), "counters are read on Linux only");
        }
        Self(HostFacts::default())
    }

    pub(crate) fn read(&mut self, _: u64, _: &mut Sources) -> Vec<Entry> {
        Vec::new()
    }

    pub(crate) fn names(&self) -> Vec<ProcessName> {
        Vec::new()
    }

    pub(crate) fn facts(&self) -> &HostFacts {
        &self.0
    }
}
