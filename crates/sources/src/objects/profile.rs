//! Profiles of the AWS command line: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The name of the profile if AWS_PROFILE names no other.
const DEFAULT: &str = "default";

/// The settings of a profile that matter to an object store.
#[derive(Default)]
pub(super) struct Profile(HashMap<String, String>);

impl Profile {
    /// Reads the profile that the environment names, or the default one if it exists.
    ///
    /// # Errors
    /// If the environment names a profile that does not exist, a file can't be read, or the profile gets its
    /// credentials in a way that is not supported.
    pub(super) fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let folder = variable("HOME").map(|home| Path::new(&home).join(".aws"));
        let file = |name: &str, in_folder: &str| {
            variable(name).map(PathBuf::from).or_else(|| Some(folder.as_ref()?.join(in_folder)))
        };
        let credentials = read(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"))?;
        let config = read(file("AWS_CONFIG_FILE", "config"))?;
        let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        let name = named.as_deref().unwrap_or(DEFAULT);
        let in_config = if name == DEFAULT { DEFAULT.to_owned() } else { format!("profile {name}") };
        let found = [section(&config, &in_config), section(&credentials, name)];
        if named.is_some() && found.iter().all(Option::is_none) {
            return Err(format!("there is no profile `{name}` (AWS_PROFILE)"));
        }
        // The credentials file takes precedence, as in the AWS command line.
        let profile = Self(found.into_iter().flatten().flatten().collect());
        let other = ["sso_session", "sso_start_url", "role_arn", "credential_process"];
        match other.iter().find(|key| profile.0.contains_key(**key)) {
            Some(key) if named.is_some() && profile.get("aws_access_key_id").is_none() => Err(format!(
                "the profile `{name}` gets its credentials by {key}, which is not supported; export them: \
                 eval \"$(aws configure export-credentials --profile {name} --format env)\""
            )),
            _ => Ok(profile),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// The text of a file; empty if it does not exist.
fn read(path: Option<PathBuf>) -> Result<String, String> {
    let Some(path) = path else { return Ok(String::new()) };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The settings of a section; `None` if the file does not have it. Settings of nested sections, which are indented,
/// are left out.
fn section(text: &str, name: &str) -> Option<HashMap<String, String>> {
    let mut found = None;
    let mut is_inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let words: Vec<&str> = header.0.split_whitespace().collect();
            is_inside = words.join(" ").replace('"', "") == name;
            if is_inside {
                found.get_or_insert_with(HashMap::new);
            }
        } else if is_inside
            && !line.starts_with(char::is_whitespace)
            && let Some((key, value)) = trimmed.split_once('=')
            && let Some(settings) = &mut found
        {
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "[default]\naws_access_key_id = one\naws_secret_access_key=s=1\n\n\
                               # a comment\n[work]\nAWS_ACCESS_KEY_ID=two\naws_session_token = t\n";
    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile work]\nregion=us-east-2\nendpoint_url = http://h\n\
                          s3 =\n  max_concurrent_requests = 20\n[profile \"of sso\"]\nsso_session = x\n";

    fn profile(name: Option<&str>) -> Result<Profile, String> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".aws");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("credentials"), CREDENTIALS).unwrap();
        std::fs::write(folder.join("config"), CONFIG).unwrap();
        Profile::of_environment(&|variable| match variable {
            "HOME" => Some(home.path().display().to_string()),
            "AWS_PROFILE" => name.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn a_profile_is_in_both_files() {
        let default = profile(None).unwrap();
        assert_eq!(default.get("aws_access_key_id"), Some("one"));
        assert_eq!(default.get("aws_secret_access_key"), Some("s=1"));
        assert_eq!((default.get("region"), default.get("aws_session_token")), (Some("eu-west-1"), None));
        let work = profile(Some("work")).unwrap();
        assert_eq!((work.get("aws_access_key_id"), work.get("aws_session_token")), (Some("two"), Some("t")));
        assert_eq!((work.get("region"), work.get("endpoint_url")), (Some("us-east-2"), Some("http://h")));
        assert_eq!(work.get("max_concurrent_requests"), None);
    }

    #[test]
    fn profiles_that_do_not_exist_or_need_a_login_are_refused() {
        assert!(profile(Some("none")).err().unwrap().contains("no profile `none`"));
        assert!(profile(Some("of sso")).err().unwrap().contains("sso_session"));
        assert!(Profile::of_environment(&|_| None).unwrap().0.is_empty());
    }
}
