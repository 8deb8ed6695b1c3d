//! What can happen in a state.

use super::{
    BUCKETS, Bucket, KEYS, Known, Message, Mutation, Rows, Search, Split, State, Work, bound, name, range,
};
use crate::key::Interval;
use crate::request::{FileRecord, Prepare};
use crate::split;

impl Search {
    /// All that can happen next.
    pub(super) fn expand(&mut self, state: &State, from: u32) {
        for (index, split) in self.scenario.splits.iter().copied().enumerate() {
            if state.begun >> index & 1 == 0 {
                self.begin(state, from, index, split);
            }
        }
        for &message in &state.messages {
            self.deliver(state, from, message);
        }
        for number in 0..BUCKETS {
            if let Some(bucket) = state.buckets[number] {
                self.work(state, from, number, bucket);
            }
        }
        for key in 0..KEYS {
            self.write(state, from, key);
        }
        if state.crashes < self.scenario.crashes {
            for node in 0..2 {
                let mut next = State { crashes: state.crashes + 1, ..state.clone() };
                for (bucket, _) in next.buckets.iter_mut().zip(self.scenario.nodes).filter(|at| at.1 == node)
                {
                    if let Some(bucket) = bucket {
                        (bucket.work, bucket.pending, bucket.asks) = (Work::None, 0, false);
                    }
                }
                self.reach(next, from, ("crash of node", node), true);
            }
        }
        if state.losses < self.scenario.losses && !state.messages.is_empty() {
            let next = State { losses: state.losses + 1, messages: Vec::new(), ..state.clone() };
            self.reach(next, from, ("lose all messages", 0), true);
        }
    }

    fn begin(&mut self, state: &State, from: u32, index: usize, split: Split) {
        let Split { origin, median, child } = split;
        let Some(bucket) = state.buckets[usize::from(origin)].filter(|bucket| bucket.work == Work::None)
        else {
            return;
        };
        let node = name(self.scenario.nodes[usize::from(child)]);
        let record = self.records.step(bucket.record, (1, child), |record| {
            if record.incoming.is_some() {
                return None;
            }
            let begun = split::begin(record, bound(median), String::new(), u64::from(child), node);
            begun.ok().map(|(record, _)| record)
        });
        let Some(record) = record else { return };
        let begun = self.records.get(record).record.splitting.clone().expect("a split");
        let high = begun.range.high.map(|high| high[0] - 1);
        let mut next = State { begun: state.begun | 1 << index, ..state.clone() };
        next.buckets[usize::from(origin)] = Some(Bucket { record, work: Work::Preparing, ..bucket });
        next.send(Message::Prepare(child, median, high, begun.epoch as u8));
        self.reach(next, from, ("begin the split to bucket", child), false);
    }

    /// What a bucket does by itself.
    fn work(&mut self, state: &State, from: u32, number: usize, bucket: Bucket) {
        let Known { is_active, splitting, given, .. } = *self.records.get(bucket.record);
        let go = |search: &mut Self, label, bucket: Bucket, message: Option<Message>| {
            let mut next = state.clone();
            next.buckets[number] = Some(bucket);
            message.into_iter().for_each(|message| next.send(message));
            search.reach(next, from, (label, number as u8), false);
        };
        let child_keys = splitting.map_or(0, |child| {
            let range = &self.records.get(bucket.record).record.splitting.as_ref().expect("a split").range;
            let range: Interval = range.clone().into();
            debug_assert!(usize::from(child) < BUCKETS);
            (0..KEYS).filter(|&key| range.contains(&[key as u8 + 1])).fold(0u8, |keys, key| keys | 1 << key)
        });
        // Rows that were not sent.
        let newer = |sent: Rows| -> Rows {
            std::array::from_fn(|key| {
                let is_newer = child_keys >> key & 1 == 1 && bucket.rows[key] != sent[key];
                if is_newer { bucket.rows[key] } else { 0 }
            })
        };
        match (bucket.work, splitting) {
            (Work::Copying { sent, number: sent_runs, waits: false }, Some(child)) => {
                let newer = newer(sent);
                let has_more = newer != [0; KEYS];
                let next = sent_runs + u8::from(has_more);
                let message = has_more.then_some(Message::Receive(child, next, newer));
                if has_more && sent_runs < 2 {
                    let work = Work::Copying { sent: bucket.rows, number: next, waits: true };
                    go(self, "send a round of bucket", Bucket { work, ..bucket }, message);
                }
                if sent_runs > 0 {
                    let work = Work::Frozen { number: next, waits: has_more };
                    go(self, "freeze bucket", Bucket { work, ..bucket }, message);
                }
            }
            (Work::Frozen { waits, .. }, Some(_)) if !waits || self.mutation == Mutation::CommitsEarly => {
                let forgets = self.mutation == Mutation::ForgetsGiven;
                let record = self.records.step(bucket.record, (2, 0), |record| {
                    let record = split::commit(record).ok()?;
                    Some(if forgets { split::confirm(&record) } else { record })
                });
                let record = record.expect("a split has begun");
                go(self, "commit the split of bucket", Bucket { record, work: Work::None, ..bucket }, None);
            }
            (Work::Failed, Some(_)) | (Work::None, Some(_)) => {
                let record = self.records.step(bucket.record, (3, 0), |record| Some(split::abort(record)));
                let record = record.expect("always");
                go(self, "abort the split of bucket", Bucket { record, work: Work::None, ..bucket }, None);
            }
            _ => {}
        }
        let waits = match bucket.work {
            Work::Preparing => true,
            Work::Copying { waits, .. } | Work::Frozen { waits, .. } => waits,
            Work::None | Work::Failed => false,
        };
        if waits {
            go(self, "fail to reach the child of bucket", Bucket { work: Work::Failed, ..bucket }, None);
        }
        if let Some((child, _)) = given {
            go(self, "send Activate from bucket", bucket, Some(Message::Activate(child)));
        }
        if !is_active {
            let asks = Bucket { asks: true, ..bucket };
            go(self, "ask for bucket", asks, Some(Message::Outcome(number as u8)));
        }
        if bucket.pending != 0 && !matches!(bucket.work, Work::Frozen { .. }) {
            self.execute(state, from, number, bucket);
        }
    }

    /// A write arrives at any bucket: a client's image may be as old as the file.
    fn write(&mut self, state: &State, from: u32, key: usize) {
        let bit = 1 << key;
        let waits = state.buckets.iter().flatten().any(|bucket| bucket.pending & bit != 0);
        if waits || state.acknowledged[key] >= self.scenario.rows_max[key] {
            return;
        }
        for number in 0..BUCKETS {
            let Some(mut bucket) = state.buckets[number] else { continue };
            let known = self.records.get(bucket.record);
            let is_owner = known.is_active && known.keys & bit != 0;
            if self.mutation == Mutation::ChecksOnArrival && !is_owner {
                continue;
            }
            bucket.pending |= bit;
            let mut next = state.clone();
            next.buckets[number] = Some(bucket);
            self.reach(next, from, ("a write arrives at bucket", number as u8), false);
        }
    }

    /// The writes that wait are stored together, or refused.
    fn execute(&mut self, state: &State, from: u32, number: usize, mut bucket: Bucket) {
        let known = self.records.get(bucket.record);
        let mut next = state.clone();
        for key in (0..KEYS).filter(|key| bucket.pending >> key & 1 == 1) {
            let is_owner = known.is_active && known.keys >> key & 1 == 1;
            if is_owner || self.mutation == Mutation::ChecksOnArrival {
                next.acknowledged[key] += 1;
                bucket.rows[key] = next.acknowledged[key];
            }
        }
        bucket.pending = 0;
        next.buckets[number] = Some(bucket);
        self.reach(next, from, ("store the writes of bucket", number as u8), false);
    }

    fn deliver(&mut self, state: &State, from: u32, message: Message) {
        let mut next = state.clone();
        let (label, argument) = match message {
            Message::Prepare(child, low, high, epoch) => {
                self.prepared(&mut next, child, (low, high, epoch));
                ("Prepare arrives at bucket", child)
            }
            Message::Prepared(child) => {
                if let Some(origin) = self.splitting(&mut next, child)
                    && origin.work == Work::Preparing
                {
                    origin.work = Work::Copying { sent: [0; KEYS], number: 0, waits: false };
                }
                ("Prepared arrives from bucket", child)
            }
            Message::Receive(child, number, rows) => {
                self.received(&mut next, child, number, rows);
                ("Receive arrives at bucket", child)
            }
            Message::Received(child, received) => {
                if let Some(origin) = self.splitting(&mut next, child)
                    && let Work::Copying { number, waits, .. } | Work::Frozen { number, waits } =
                        &mut origin.work
                    && *number == received
                {
                    *waits = false;
                }
                ("Received arrives from bucket", child)
            }
            Message::Activate(child) => {
                if next.buckets[usize::from(child)].is_some() {
                    self.activate(&mut next, child);
                    next.send(Message::Activated(child));
                }
                ("Activate arrives at bucket", child)
            }
            Message::Activated(child) => {
                for bucket in next.buckets.iter_mut().flatten() {
                    if self.records.get(bucket.record).given.is_some_and(|given| given.0 == child) {
                        let confirmed =
                            self.records.step(bucket.record, (4, 0), |record| Some(split::confirm(record)));
                        bucket.record = confirmed.expect("always");
                    }
                }
                ("Activated arrives from bucket", child)
            }
            Message::Outcome(child) => {
                self.asked(&mut next, child);
                ("Outcome is asked by bucket", child)
            }
            Message::Decided(child, decided) => {
                if let Some(bucket) = &mut next.buckets[usize::from(child)]
                    && bucket.asks
                {
                    bucket.asks = false;
                    match decided {
                        None => {}
                        Some(true) => self.activate(&mut next, child),
                        // As `Node::abandon`: an active bucket stays, whatever the answer.
                        Some(false) if self.records.get(bucket.record).is_active => {}
                        Some(false) => next.buckets[usize::from(child)] = None,
                    }
                }
                ("Decided arrives at bucket", child)
            }
        };
        if next != *state {
            self.reach(next, from, (label, argument), false);
        }
    }

    /// The bucket whose split makes `child`, while that is not decided.
    fn splitting<'s>(&self, state: &'s mut State, child: u8) -> Option<&'s mut Bucket> {
        let is_origin = |bucket: &&mut Bucket| self.records.get(bucket.record).splitting == Some(child);
        state.buckets.iter_mut().flatten().find(is_origin)
    }

    fn prepared(&mut self, state: &mut State, child: u8, (low, high, epoch): (u8, Option<u8>, u8)) {
        let splits = self.scenario.splits.iter();
        let origin = splits.clone().find(|split| split.child == child).expect("a split").origin;
        let request = Prepare {
            file: FileRecord::default(),
            bucket: u64::from(child),
            range: range(low, high),
            epoch: u64::from(epoch),
            from_node: name(self.scenario.nodes[usize::from(origin)]),
            from_bucket: u64::from(origin),
            bytes: 0,
        };
        let slot = &mut state.buckets[usize::from(child)];
        let existing = slot.map(|bucket| self.records.get(bucket.record).record.clone());
        let Ok(mut record) = split::prepare(existing.as_ref(), &request) else { return };
        if slot.is_none() {
            if self.mutation == Mutation::ActiveWhenPrepared {
                record.incoming = None;
            }
            let record = self.records.number(record);
            let rows = [0; KEYS];
            *slot = Some(Bucket { record, rows, work: Work::None, pending: 0, asks: false });
        }
        state.send(Message::Prepared(child));
    }

    fn received(&mut self, state: &mut State, child: u8, number: u8, rows: Rows) {
        let Some(bucket) = &mut state.buckets[usize::from(child)] else { return };
        let any_order = self.mutation == Mutation::AnyOrder;
        let mut is_refused = false;
        let record = self.records.step(bucket.record, (5, number), |record| {
            let received = split::receive(record, number.into());
            match received {
                Err(_) | Ok(None) if any_order && record.incoming.is_some() => Some(record.clone()),
                received => received.ok().flatten(),
            }
        });
        match record {
            Some(record) => {
                bucket.record = record;
                for (row, new) in bucket.rows.iter_mut().zip(rows).filter(|(_, new)| *new > 0) {
                    *row = new;
                }
            }
            // It has these rows, or refuses them.
            None => {
                is_refused = split::receive(&self.records.get(bucket.record).record, number.into()).is_err()
            }
        }
        if !is_refused {
            state.send(Message::Received(child, number));
        }
    }

    fn activate(&mut self, state: &mut State, child: u8) {
        if let Some(bucket) = &mut state.buckets[usize::from(child)] {
            let record = self.records.step(bucket.record, (6, 0), |record| Some(split::activate(record)));
            bucket.record = record.expect("always");
        }
    }

    /// As `Node::outcome`: all buckets of the node that splits are asked, each when nobody holds its writer.
    fn asked(&mut self, state: &mut State, child: u8) {
        let splits = self.scenario.splits.iter();
        let origin = splits.clone().find(|split| split.child == child).expect("a split").origin;
        let node = self.scenario.nodes[usize::from(origin)];
        let mut decided = Some(false);
        for (bucket, _) in state.buckets.iter().zip(self.scenario.nodes).filter(|(_, at)| *at == node) {
            let Some(bucket) = bucket else { continue };
            if matches!(bucket.work, Work::Frozen { .. }) {
                return;
            }
            match split::outcome(&self.records.get(bucket.record).record, child.into()) {
                Some(false) => {}
                None if self.mutation == Mutation::DecidesEarly => {}
                found => decided = found,
            }
        }
        state.send(Message::Decided(child, decided));
    }
}
