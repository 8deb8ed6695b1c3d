//! What nodes send each other about overlays.

use std::sync::{MutexGuard, PoisonError};

use super::super::request::OverlayPart;
use super::{MemberStatus, Members};

/// A node that can be part of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OverlayNode {
    pub(crate) name: String,
    pub(crate) instance: u64,
    pub(crate) address: String,
    pub(crate) connections_max: usize,
    /// The epoch of the overlay that it is part of.
    pub(crate) epoch: Option<u64>,
}

impl OverlayNode {
    fn of(name: &str, instance: u64, part: &OverlayPart) -> Self {
        Self {
            name: name.to_owned(),
            instance,
            address: part.address.clone(),
            connections_max: usize::try_from(part.connections_max).unwrap_or(usize::MAX),
            epoch: part.epoch,
        }
    }
}

impl Members {
    pub(super) fn overlay(&self) -> MutexGuard<'_, Option<OverlayPart>> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces to the others which overlay this node is part of.
    pub(crate) fn announce_epoch(&self, epoch: Option<u64>) {
        if let Some(part) = self.overlay().as_mut() {
            part.epoch = epoch;
        }
        self.changed();
    }

    /// Whether this node has announced that it is part of an overlay.
    pub(crate) fn is_part_of(&self, epoch: u64) -> bool {
        self.overlay().as_ref().is_some_and(|part| part.epoch == Some(epoch))
    }

    /// The nodes that an overlay would connect, sorted by name; `None` if one of them can't be part of any.
    pub(crate) fn overlay_nodes(&self) -> Option<Vec<OverlayNode>> {
        let mut nodes = vec![OverlayNode::of(&self.me, self.instance, self.overlay().as_ref()?)];
        for (name, known) in self.known().iter() {
            if let MemberStatus::Met(description) = &known.condition {
                nodes.push(OverlayNode::of(name, description.instance, description.overlay.as_ref()?));
            }
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Some(nodes)
    }

    /// Whether a node that was connected was lost, or has restarted.
    pub(crate) fn is_lost(&self, name: &str, instance: u64) -> bool {
        self.known().get(name).is_some_and(|known| match &known.condition {
            MemberStatus::Met(description) => description.instance != instance,
            MemberStatus::Lost { .. } => true,
            MemberStatus::New | MemberStatus::Unmet { .. } | MemberStatus::Stopped { .. } => false,
        })
    }

    /// Whether any other node that `is_of` selects is part of the overlay of this epoch.
    pub(crate) fn is_announced(&self, epoch: u64, is_of: impl Fn(&str, u64) -> bool) -> bool {
        self.known().iter().any(|(name, known)| match &known.condition {
            MemberStatus::Met(description) => {
                let announced = description.overlay.as_ref().and_then(|part| part.epoch);
                announced == Some(epoch) && is_of(name, description.instance)
            }
            _ => false,
        })
    }
}
