//! Which nodes belong to a cluster.
//!
//! A node that has joined once belongs to the cluster until it is removed, running or not: its rows are
//! part of the tables. Every node keeps the roster, also on disk (`store.rs`), and sends it to the others,
//! which merge it with their own. Merging is commutative, associative and idempotent, so all nodes that
//! reach each other converge on the same roster, in any order of messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::request::MemberEntry;

/// Nodes of a roster, removed ones included.
pub(crate) const NODES_MAX: usize = 1024;

/// Whether a node belongs to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// How often the node was added. The higher generation is the later one.
    pub(crate) generation: u64,
    /// Whether it was removed in this generation.
    pub(crate) removed: bool,
}

impl Membership {
    const FIRST: Self = Self { generation: 1, removed: false };

    /// The later of both: a removal is later than the generation that it removes.
    fn later(self, other: Self) -> Self {
        if (other.generation, other.removed) > (self.generation, self.removed) { other } else { self }
    }
}

/// An invalid change of the roster.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RosterError {
    /// No node with this name has ever joined, or it is removed already.
    #[error("node {0} is not in the cluster")]
    Unknown(String),
    /// It was never removed.
    #[error("node {0} is in the cluster already")]
    Present(String),
    /// The roster is full.
    #[error("the cluster has {NODES_MAX} nodes, removed ones included: no more can join")]
    Full,
}

/// The nodes that belong to the cluster, and those that were removed from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Roster(BTreeMap<String, Membership>);

impl Roster {
    /// Adds an unknown node. A removed node stays removed.
    ///
    /// # Errors
    /// [`RosterError::Full`].
    pub(crate) fn admit(&mut self, name: &str) -> Result<(), RosterError> {
        self.merge_one(name, Membership::FIRST)
    }

    /// Removes a node for good.
    ///
    /// # Errors
    /// [`RosterError::Unknown`].
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), RosterError> {
        match self.0.get_mut(name) {
            Some(membership) if !membership.removed => {
                membership.removed = true;
                Ok(())
            }
            _ => Err(RosterError::Unknown(name.into())),
        }
    }

    /// Adds a removed node again.
    ///
    /// # Errors
    /// [`RosterError::Present`] where it belongs to the cluster already, [`RosterError::Unknown`] where it has
    /// never joined.
    pub(crate) fn restore(&mut self, name: &str) -> Result<(), RosterError> {
        match self.0.get_mut(name) {
            Some(membership) if membership.removed => {
                *membership = Membership { generation: membership.generation + 1, removed: false };
                Ok(())
            }
            Some(_) => Err(RosterError::Present(name.into())),
            None => Err(RosterError::Unknown(name.into())),
        }
    }

    /// Adds the entries of another roster that are new or later.
    ///
    /// # Errors
    /// [`RosterError::Full`]; part of the other roster has been added then.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), RosterError> {
        other.0.iter().try_for_each(|(name, membership)| self.merge_one(name, *membership))
    }

    fn merge_one(&mut self, name: &str, membership: Membership) -> Result<(), RosterError> {
        if let Some(own) = self.0.get_mut(name) {
            *own = own.later(membership);
            return Ok(());
        }
        if self.0.len() >= NODES_MAX {
            return Err(RosterError::Full);
        }
        self.0.insert(name.into(), membership);
        Ok(())
    }

    /// Nodes that belong to the cluster.
    pub(crate) fn members(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, membership)| !membership.removed).map(|(name, _)| name.as_str())
    }

    /// Nodes that were removed from the cluster.
    pub(crate) fn removed(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, membership)| membership.removed).map(|(name, _)| name.as_str())
    }

    pub(crate) fn is_member(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|membership| !membership.removed)
    }

    pub(crate) fn is_removed(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|membership| membership.removed)
    }

    /// Nodes that have ever joined.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The roster as it is sent.
    pub(crate) fn to_entries(&self) -> Vec<MemberEntry> {
        let entry = |(name, membership): (&String, &Membership)| MemberEntry {
            name: name.clone(),
            generation: membership.generation,
            removed: membership.removed,
        };
        self.0.iter().map(entry).collect()
    }

    /// The roster as another node sent it. At most [`NODES_MAX`] + 1 entries are read, one more than a
    /// roster can have.
    pub(crate) fn from_entries(entries: &[MemberEntry]) -> Self {
        let entry = |entry: &MemberEntry| {
            let membership = Membership { generation: entry.generation, removed: entry.removed };
            (entry.name.clone(), membership)
        };
        Self(entries.iter().take(NODES_MAX + 1).map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rosters() -> impl Strategy<Value = Roster> {
        let membership =
            (1..4u64, any::<bool>()).prop_map(|(generation, removed)| Membership { generation, removed });
        let name = prop::sample::select(vec!["a:1", "b:1", "c:1", "d:1"]).prop_map(str::to_owned);
        prop::collection::btree_map(name, membership, 0..4).prop_map(Roster)
    }

    fn merged(one: &Roster, other: &Roster) -> Roster {
        let mut merged = one.clone();
        merged.merge(other).unwrap();
        merged
    }

    proptest! {
        #[test]
        fn the_order_of_messages_does_not_matter(a in rosters(), b in rosters(), c in rosters()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&merged(&a, &b), &b), merged(&a, &b));
            prop_assert_eq!(Roster::from_entries(&a.to_entries()), a);
        }

        /// A merge drops a member only if the other roster removed the same generation or a later one.
        #[test]
        fn a_member_stays_until_it_is_removed(a in rosters(), b in rosters()) {
            let all = merged(&a, &b);
            for name in a.members() {
                let removed = b.0.get(name).is_some_and(|other| other.removed && other.generation >= a.0[name].generation);
                prop_assert_eq!(all.is_member(name), !removed);
            }
        }
    }

    #[test]
    fn a_removed_node_comes_back_only_when_it_is_added() {
        let mut roster = Roster::default();
        roster.admit("a:1").unwrap();
        let before = roster.clone();
        assert_eq!(roster.restore("a:1"), Err(RosterError::Present("a:1".into())));
        roster.remove("a:1").unwrap();
        assert_eq!(roster.remove("a:1"), Err(RosterError::Unknown("a:1".into())));
        roster.admit("a:1").unwrap();
        roster.merge(&before).unwrap();
        assert!(roster.is_removed("a:1") && roster.members().next().is_none());
        let removed = roster.clone();
        roster.restore("a:1").unwrap();
        roster.merge(&removed).unwrap();
        assert!(roster.is_member("a:1"), "an old removal says nothing of the new generation");
        assert_eq!(roster.restore("b:1"), Err(RosterError::Unknown("b:1".into())));
    }

    #[test]
    fn a_full_roster_refuses_new_nodes() {
        let mut roster = Roster::default();
        (0..NODES_MAX).for_each(|port| roster.admit(&format!("a:{port}")).unwrap());
        assert_eq!(roster.admit("b:1"), Err(RosterError::Full));
        roster.admit("a:1").unwrap();
        let mut other = roster.to_entries();
        other[0].name = "b:1".into();
        assert_eq!(roster.merge(&Roster::from_entries(&other)), Err(RosterError::Full));
    }
}
