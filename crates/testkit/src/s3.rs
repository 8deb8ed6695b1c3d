//! A server of S3 for tests and benchmarks, in this process: the crate `s3s`, which checks signatures, over a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s::{Body, HttpError};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// The key of the only user.
pub const ACCESS_KEY: &str = "AKIATESTER";
/// The user's secret.
pub const SECRET_KEY: &str = "s3cret/key+of=tester";

/// A server of S3 with its objects in a folder, which is removed with it.
pub struct S3 {
    /// Its address, as in `http://127.0.0.1:9000`.
    pub endpoint: String,
    folder: TempDir,
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
}

impl S3 {
    /// Starts a server at a free port of this host.
    ///
    /// # Panics
    /// If it can't.
    pub fn start() -> Self {
        Self::listen("127.0.0.1:0")
    }

    /// Starts a server at this address; port 0 picks a free one.
    ///
    /// # Panics
    /// If it can't.
    pub fn listen(address: &str) -> Self {
        Self::listen_and_store_in(address, Duration::ZERO)
    }

    /// Starts a server at a free port that takes this long to store what has arrived. It does so even if the client hangs up
    /// meanwhile, as S3 does.
    ///
    /// # Panics
    /// If it can't.
    pub fn start_slow(storing: Duration) -> Self {
        Self::listen_and_store_in("127.0.0.1:0", storing)
    }

    fn listen_and_store_in(address: &str, storing: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let service = {
            let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).expect("a folder"));
            builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
            builder.build()
        };
        let root: Arc<Path> = folder.path().into();
        let listener = runtime.block_on(TcpListener::bind(address)).expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (service, root) = (service.clone(), root.clone());
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (service, root) = (service.clone(), root.clone());
                    async move {
                        // The crate fails to describe a folder of its own as an object; S3 has no folders.
                        let is_folder = root.join(request.uri().path().trim_start_matches('/')).is_dir();
                        if request.method() == Method::HEAD && is_folder {
                            let missing =
                                Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty());
                            return missing.map_err(|error| HttpError::new(Box::new(error)));
                        }
                        if request.method() != Method::PUT || storing.is_zero() {
                            return service.call(request.map(Body::from)).await;
                        }
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map_err(|error| HttpError::new(Box::new(error)))?;
                        let request = Request::from_parts(head, Body::from(body.to_bytes()));
                        let stored = tokio::spawn(async move {
                            tokio::time::sleep(storing).await;
                            service.call(request).await
                        });
                        stored.await.unwrap_or_else(|error| Err(HttpError::new(Box::new(error))))
                    }
                });
                tokio::spawn(async move {
                    // A client may hang up at any time.
                    let connections = Connections::new(TokioExecutor::new());
                    let _ = connections.serve_connection(TokioIo::new(socket), answer).await;
                });
            }
        });
        Self { endpoint, folder, runtime: Some(runtime) }
    }

    /// The folder of a bucket, which is created if it is missing. Its files are the bucket's objects.
    ///
    /// # Panics
    /// If it can't be created.
    pub fn bucket(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// The parts of uploads that are neither complete nor aborted.
    ///
    /// # Panics
    /// If the folder can't be read.
    pub fn parts(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(".upload")).collect()
    }

    /// The environment by which clients find it and are let in.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}
