//! Disk bytes of a process, without those of its children.

/// Bytes that a process read from disks and wrote.
#[derive(Debug, Default)]
pub(super) struct DiskBytes {
    /// What the kernel counts: bytes of the process, and of children that it has waited for.
    raw: [u64; 2],
    /// The same at the last two readings, the older one first.
    earlier: [[u64; 2]; 2],
    /// The part of it that belongs to children which were counted themselves.
    children: [u64; 2],
    /// Children that have ended and are not in the counters yet, each with the number of readings to look for it.
    ended: Vec<([u64; 2], u8)>,
    reported: [u64; 2],
}

/// The most children whose end is remembered until the parent's counters include their bytes.
const ENDED_MAX: usize = 1024;

impl DiskBytes {
    /// The kernel's counters at the last reading.
    pub(super) fn raw(&self) -> [u64; 2] {
        self.raw
    }

    /// Bytes read and written, in the text of `/proc/PID/io`.
    pub(super) fn parse(text: &str) -> Option<[u64; 2]> {
        let find = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Some([find("read_bytes:")?, find("write_bytes:")?])
    }

    /// Records that a counted child has ended.
    pub(super) fn child_ended(&mut self, bytes: [u64; 2]) {
        if self.ended.len() < ENDED_MAX && bytes != [0; 2] {
            self.ended.push((bytes, 2));
        }
    }

    /// The process's own bytes. The kernel adds the bytes of a child when the parent waits for it, unless the parent
    /// ignores its children: then the counters don't rise, and nothing is subtracted.
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
    fn bytes_of_a_counted_child_are_not_counted_again_at_its_parent() {
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
