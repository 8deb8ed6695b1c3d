//! What a lab needs on the machine.

use std::fmt;

use serde::Serialize;

/// Something that a lab can use, and whether this machine has it.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What it is.
    pub what: &'static str,
    /// Whether this machine has it.
    pub found: bool,
    /// Whether every lab needs it.
    pub required: bool,
    /// What it is for.
    pub purpose: &'static str,
    /// How to get it.
    pub hint: String,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, purpose, hint, .. } = self;
        if self.found { write!(f, "{what}: found") } else { write!(f, "{what}: missing ({purpose}); {hint}") }
    }
}
