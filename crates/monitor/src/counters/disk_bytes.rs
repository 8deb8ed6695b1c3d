//! Disk bytes of a process, without those of its children.

/// Bytes that a process read from disks and wrote.
#[derive(Debug, Default)]
pub(super) struct DiskBytes {
    /// What the kernel says: the process, and children that it has waited for.
    raw: [u64; 2],
    /// The same two readings ago.
    earlier: [[u64; 2]; 2],
    /// Of it, what children had that were counted themselves.
    children: [u64; 2],
    /// Children that have ended since, and the readings for which each is still looked for.
    ended: Vec<([u64; 2], u8)>,
    reported: [u64; 2],
}

/// Children that end between two readings and are told apart.
const ENDED_MAX: usize = 1024;

impl DiskBytes {
    /// What the kernel said last.
    pub(super) fn raw(&self) -> [u64; 2] {
        self.raw
    }

    /// Bytes read and written, in the text of `/proc/PID/io`.
    pub(super) fn parse(text: &str) -> Option<[u64; 2]> {
        let find = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Some([find("read_bytes:")?, find("write_bytes:")?])
    }

    /// A child that was counted has ended.
    pub(super) fn child_ended(&mut self, bytes: [u64; 2]) {
        if self.ended.len() < ENDED_MAX && bytes != [0; 2] {
            self.ended.push((bytes, 2));
        }
    }

    /// The process's own bytes. The kernel adds what a child had when the parent waits for it, except if the parent
    /// ignores its children; then the counters do not rise, and nothing is to be taken away.
    pub(super) fn update(&mut self, raw: [u64; 2]) -> [u64; 2] {
        self.raw = raw;
        let [before, _] = self.earlier;
        let mut more = [0, 1].map(|i: usize| at(raw, i).saturating_sub(at(before, i)));
        let children = &mut self.children;
        self.ended.retain_mut(|(bytes, readings)| {
            if at(*bytes, 0) <= at(more, 0) && at(*bytes, 1) <= at(more, 1) {
                more = [0, 1].map(|i: usize| at(more, i) - at(*bytes, i));
                *children = [0, 1].map(|i: usize| at(*children, i).saturating_add(at(*bytes, i)));
                return false;
            }
            *readings -= 1;
            *readings > 0
        });
        let [_, last] = self.earlier;
        self.earlier = [last, raw];
        let own =
            [0, 1].map(|i: usize| at(raw, i).saturating_sub(at(self.children, i)).max(at(self.reported, i)));
        self.reported = own;
        own
    }
}

fn at(pair: [u64; 2], index: usize) -> u64 {
    pair.get(index).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_counted_child_did_is_not_counted_again_at_its_parent() {
        let mut parent = DiskBytes::default();
        assert_eq!(parent.update([10, 0]), [10, 0]);
        assert_eq!(parent.update([10, 0]), [10, 0]);
        parent.child_ended([100, 5]);
        // 100 that were counted, 7 after the last reading of the child, 3 of the parent.
        assert_eq!(parent.update([120, 5]), [20, 0]);
        // The parent was read after the child ended, and before that was noticed.
        assert_eq!(parent.update([170, 5]), [70, 0]);
        parent.child_ended([50, 0]);
        assert_eq!(parent.update([170, 5]), [70, 0]);
        assert_eq!(parent.update([175, 5]), [70, 0], "catches up without falling");
        // A parent that ignores its children.
        parent.child_ended([1000, 0]);
        assert_eq!(parent.update([180, 5]), [70, 0]);
        assert_eq!(parent.update([240, 5]), [90, 0]);
    }
}
