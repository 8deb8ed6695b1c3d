//! Entry points for the fuzz targets. Not part of the public interface.

use std::path::Path;
use std::time::{Duration, SystemTime};

use lightship_tuner::Sizes;

use crate::{LinkPrior, Profile, history};

/// Parses profile and history files with arbitrary contents, and uses what they say.
pub fn link_files(profile: &str, history: &[u8]) {
    let profile = Profile::parse(Path::new("profile"), profile).ok();
    let facts = history::parse(history);
    facts.iter().for_each(|fact| {
        let _ = fact.error();
    });
    if let Some(profile) = &profile {
        profile.doubts(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30));
    }
    let known = LinkPrior::of(profile.as_ref(), &facts, "select 1");
    let sizes = Sizes { message_bytes: 1 << 16, window_batches: 4 };
    let _ = known.predict(1 << 30, sizes);
}
