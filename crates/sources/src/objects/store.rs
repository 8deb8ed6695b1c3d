//! Access to the objects of a bucket, or to the files of a web server.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::Timelike as _;
use futures::stream::{BoxStream, StreamExt as _};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, HeaderValue,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};

use super::error::{ObjectError, ObjectErrorKind};
use super::location::{ObjectLocation, ObjectScheme};
use super::profile::Profile;

/// How often a request is repeated that fails for a reason that may pass: no connection, no answer in time, a status of 5xx.
const RETRIES_MAX: usize = 8;
/// Maximum time from the first attempt to the start of the last one. An attempt may take 30 seconds.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause before the first repetition, which grows up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Access to the objects of a bucket. All errors are an [`ObjectError`] inside of the library's error.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    root: Arc<str>,
    /// The query of all URLs.
    query: Option<Arc<str>>,
    scheme: ObjectScheme,
}

impl Store {
    /// Makes a client for the bucket of a location. Nothing is sent yet.
    ///
    /// # Errors
    /// If the environment or a profile has settings that make no sense.
    pub fn of(location: &ObjectLocation) -> Result<Self, ObjectError> {
        let (scheme, root) = (location.scheme(), location.root());
        let made: Result<Arc<dyn ObjectStore>> = match scheme {
            ObjectScheme::S3 => {
                let builder = s3(location.bucket(), &|name| std::env::var(name).ok()).map_err(|reason| {
                    ObjectError { object: root.to_owned(), reason, hint: None, kind: ObjectErrorKind::Denied }
                });
                builder?.build().map(|store| Arc::new(store) as _)
            }
            ObjectScheme::Google => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(root).with_retry(retries());
                builder.build().map(|store| Arc::new(store) as _)
            }
            ObjectScheme::Azure => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(root).with_retry(retries());
                builder.build().map(|store| Arc::new(store) as _)
            }
            ObjectScheme::Http => {
                let query = location.query().map(|query| format!("?{query}")).unwrap_or_default();
                let options =
                    ClientOptions::new().with_allow_http(root.starts_with("http://")).with_user_agent(
                        HeaderValue::from_static(concat!("lightship/", env!("CARGO_PKG_VERSION"))),
                    );
                let builder =
                    HttpBuilder::new().with_url(format!("{root}/{query}")).with_client_options(options);
                builder.with_retry(retries()).build().map(|store| Arc::new(store) as _)
            }
        };
        let inner = made.map_err(|error| ObjectError::of(root, scheme, &error))?;
        Ok(Self { inner, root: root.into(), query: location.query().map(Into::into), scheme })
    }

    /// The objects and folders right below a prefix, in order, and whether each is a folder. Hidden ones are left out.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn tables_below(&self, prefix: &Key) -> Result<Vec<(Key, bool)>, ObjectError> {
        let is_root = prefix.as_ref().is_empty();
        let listed = self.list_with_delimiter((!is_root).then_some(prefix)).await;
        let listed = listed.map_err(|error| self.explain(prefix, &error))?;
        let folders = listed.common_prefixes.into_iter().map(|key| (key, true));
        let objects = listed.objects.into_iter().filter(|meta| meta.location != *prefix);
        let objects = objects.map(|meta| (meta.location, false));
        let is_shown = |(key, _): &(Key, bool)| key.filename().is_some_and(|name| !name.starts_with('.'));
        let mut found: Vec<(Key, bool)> = folders.chain(objects).filter(is_shown).collect();
        found.sort();
        Ok(found)
    }

    /// The object with a time of change that tells its versions, and objects of the same name in different stores, apart.
    ///
    /// DataFusion keeps footers of Parquet by name, size and time. Stores tell the time in seconds, in lists also in
    /// milliseconds, so the fraction is replaced by a hash of the version's tag.
    fn with_version(&self, meta: ObjectMeta) -> ObjectMeta {
        let mut hasher = DefaultHasher::new();
        (&self.root, &self.query, &meta.e_tag, &meta.version).hash(&mut hasher);
        let fraction = u32::try_from(hasher.finish() % 1_000_000_000).unwrap_or_default();
        let last_modified = meta.last_modified.with_nanosecond(fraction).unwrap_or(meta.last_modified);
        ObjectMeta { last_modified, ..meta }
    }

    fn explain(&self, key: &Key, error: &Error) -> ObjectError {
        let object =
            if key.as_ref().is_empty() { self.root.to_string() } else { format!("{}/{key}", self.root) };
        ObjectError::of(&object, self.scheme, error)
    }

    /// The same error, as one of ours inside of the library's. The kinds that callers react to stay.
    fn error(&self, key: &Key, error: Error) -> Error {
        let source = Box::new(self.explain(key, &error));
        let path = key.to_string();
        match error {
            Error::NotFound { .. } => Error::NotFound { path, source },
            Error::Precondition { .. } => Error::Precondition { path, source },
            error @ (Error::NotImplemented { .. } | Error::NotSupported { .. }) => error,
            _ => Error::Generic { store: "object", source },
        }
    }
}

fn retries() -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: PAUSE_MIN, max_backoff: PAUSE_MAX, ..BackoffConfig::default() };
    RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT }
}

/// A client for a bucket of S3. As for the AWS command line, keys in the environment take precedence over a profile, and
/// a profile over what the host or a container provides.
fn s3(bucket: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<AmazonS3Builder, String> {
    use AmazonS3ConfigKey as K;
    let profile = Profile::of_environment(variable)?;
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
    let is_unset = |builder: &AmazonS3Builder, key: K| builder.get_config_value(&key).is_none();
    let elsewhere = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    let is_elsewhere =
        elsewhere.iter().any(|name| variable(name).is_some()) && variable("AWS_PROFILE").is_none();
    if is_unset(&builder, K::AccessKeyId) && is_unset(&builder, K::SecretAccessKey) && !is_elsewhere {
        for (key, name) in [
            (K::AccessKeyId, "aws_access_key_id"),
            (K::SecretAccessKey, "aws_secret_access_key"),
            (K::Token, "aws_session_token"),
        ] {
            if let Some(value) = profile.get(name) {
                builder = builder.with_config(key, value);
            }
        }
    }
    if is_unset(&builder, K::Region)
        && let Some(region) = variable("AWS_DEFAULT_REGION").as_deref().or(profile.get("region"))
    {
        builder = builder.with_region(region);
    }
    if is_unset(&builder, K::Endpoint)
        && is_unset(&builder, K::S3Endpoint)
        && let Some(endpoint) = profile.get("endpoint_url")
    {
        builder = builder.with_endpoint(endpoint);
    }
    // Whoever writes http:// into the address of the server has decided it, as for the AWS command line.
    let endpoint =
        builder.get_config_value(&K::S3Endpoint).or_else(|| builder.get_config_value(&K::Endpoint));
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
        && variable("AWS_ALLOW_HTTP").is_none()
    {
        builder = builder.with_config("aws_allow_http".parse().map_err(|e: Error| e.to_string())?, "true");
    }
    Ok(builder)
}

/// Shows no signature, and nothing of the client.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.root)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)
    }
}

/// The bytes of a response, whose number is checked.
fn checked(
    store: Store,
    key: Key,
    bytes: BoxStream<'static, Result<bytes::Bytes>>,
    expected: u64,
) -> BoxStream<'static, Result<bytes::Bytes>> {
    let state = (store, key, bytes, expected);
    futures::stream::try_unfold(state, |(store, key, mut bytes, missing)| async move {
        match bytes.next().await {
            Some(Ok(chunk)) => {
                let missing =
                    missing.checked_sub(chunk.len() as u64).ok_or_else(|| store.odd(&key, "more"))?;
                Ok(Some((chunk, (store, key, bytes, missing))))
            }
            Some(Err(error)) => Err(store.error(&key, error)),
            None if missing > 0 => Err(store.odd(&key, "fewer")),
            None => Ok(None),
        }
    })
    .boxed()
}

impl Store {
    fn odd(&self, key: &Key, how_many: &str) -> Error {
        let source = ObjectError {
            object: format!("{}/{key}", self.root),
            reason: format!("the server sent {how_many} bytes than it announced"),
            hint: Some("try again".into()),
            kind: ObjectErrorKind::Unreachable,
        };
        Error::Generic { store: "object", source: Box::new(source) }
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(&self, key: &Key, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(key, payload, options).await.map_err(|error| self.error(key, error))
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await.map_err(|error| self.error(key, error))
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let got = self.inner.get_opts(key, options).await.map_err(|error| self.error(key, error))?;
        let got = GetResult { meta: self.with_version(got.meta), ..got };
        if is_head {
            return Ok(got);
        }
        let expected = got.range.end.saturating_sub(got.range.start);
        let payload = match got.payload {
            GetResultPayload::Stream(bytes) => {
                GetResultPayload::Stream(checked(self.clone(), key.clone(), bytes, expected))
            }
            file => file,
        };
        Ok(GetResult { payload, ..got })
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Key>>) -> BoxStream<'static, Result<Key>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, key) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listed = self.inner.list(prefix).map(move |item| match item {
            Ok(meta) => Ok(store.with_version(meta)),
            Err(error) => Err(store.error(&key, error)),
        });
        listed.boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        let listed = self.inner.list_with_delimiter(prefix).await;
        let listed = listed.map_err(|error| self.error(&prefix.cloned().unwrap_or_default(), error))?;
        let objects = listed.objects.into_iter().map(|meta| self.with_version(meta)).collect();
        Ok(ListResult { objects, ..listed })
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await.map_err(|error| self.error(from, error))
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn versions_and_stores_have_different_times() {
        let store = |root: &str| Store {
            inner: Arc::new(InMemory::new()),
            root: root.into(),
            query: None,
            scheme: ObjectScheme::S3,
        };
        let meta = |tag: &str, millis: i64| ObjectMeta {
            location: Key::from("x.parquet"),
            last_modified: chrono::DateTime::from_timestamp_millis(1_700_000_000_000 + millis).unwrap(),
            size: 1,
            e_tag: Some(tag.to_owned()),
            version: None,
        };
        let time = |root: &str, tag: &str, millis| store(root).with_version(meta(tag, millis)).last_modified;
        let expected = time("s3://a", "1", 0);
        // A list has milliseconds, a head has not.
        assert_eq!(time("s3://a", "1", 123), expected);
        for (root, tag, millis) in [("s3://b", "1", 0), ("s3://a", "2", 0), ("s3://a", "1", 1000)] {
            assert_ne!(time(root, tag, millis), expected, "{root} {tag}");
        }
    }

    #[test]
    fn an_address_without_encryption_is_allowed_when_it_is_given() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let config =
            "[default]\nendpoint_url = http://127.0.0.1:9\nregion = eu-north-1\naws_access_key_id = k\n";
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        let folder = home.path().display().to_string();
        let builder = s3("b", &|name| (name == "HOME").then(|| folder.clone())).unwrap();
        let value = |key: &str| builder.get_config_value(&key.parse().unwrap());
        // The environment of the test may have settings of its own.
        if std::env::vars().all(|(name, _)| !name.starts_with("AWS_")) {
            assert_eq!(value("aws_access_key_id").as_deref(), Some("k"));
            assert_eq!(value("aws_region").as_deref(), Some("eu-north-1"));
            assert_eq!(value("aws_allow_http").as_deref(), Some("true"));
        }
    }
}
