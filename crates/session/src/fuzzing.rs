//! What the fuzz targets reach of this crate; no part of its interface.

use std::path::Path;
use std::time::{Duration, SystemTime};

use lightship_tuner::Sizes;

use crate::{Known, Profile, history};

/// The files about a link, as anybody may have left them, and what is concluded from them.
pub fn link_files(profile: &str, history: &[u8]) {
    let profile = Profile::parse(Path::new("profile"), profile).ok();
    let facts = history::parse(history);
    facts.iter().for_each(|fact| {
        let _ = fact.error();
    });
    if let Some(profile) = &profile {
        profile.doubts(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30));
    }
    let known = Known::of(profile.as_ref(), &facts, "select 1");
    let sizes = Sizes { message_bytes: 1 << 16, window_batches: 4 };
    let _ = known.predict(1 << 30, sizes);
}
