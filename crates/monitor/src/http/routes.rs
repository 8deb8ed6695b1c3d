//! The routes and their answers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Form, Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION,
    REFERRER_POLICY, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;

use super::access::{Access, Gate};
use super::{HttpOptions, files};
use crate::recorder::{METRICS_CONTENT_TYPE, Recorder};
use crate::time::monotonic_ns;

/// The most bytes of the login form.
const FORM_BYTES_MAX: usize = 4096;
/// The time that series and traces span if the request does not say, in nanoseconds.
const SPAN_NS: u64 = 600_000_000_000;
/// The most points of a series, and those of a request that does not say.
const POINTS_MAX: usize = 2000;
const POINTS: usize = 300;
/// The most queries of a list, and those of a request that does not say.
const QUERIES_MAX: usize = 10_000;
const QUERIES: usize = 100;

/// Nothing from elsewhere, no inline scripts and styles, and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

struct Shared {
    recorder: Arc<Recorder>,
    gate: Gate,
    title: String,
    reports: Arc<Semaphore>,
    timeout: Duration,
}

type App = State<Arc<Shared>>;

pub(super) fn router(recorder: Arc<Recorder>, options: &HttpOptions, port: u16) -> std::io::Result<Router> {
    let shared = Arc::new(Shared {
        recorder,
        gate: Gate::new(options, port)?,
        title: options.title.clone(),
        reports: Arc::new(Semaphore::new(options.reports_max.max(1))),
        timeout: options.answer_timeout,
    });
    Ok(Router::new()
        .route("/", get(index))
        .route("/login", get(login_form).post(login))
        .route("/logout", post(logout))
        .route("/files/{name}", get(file))
        .route("/api/overview", get(overview))
        .route("/api/queries", get(queries))
        .route("/api/queries/{id}", get(query))
        .route("/api/series", get(series))
        .route("/api/scaling", get(scaling))
        .route("/api/trace", get(trace))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(from_fn_with_state(shared.clone(), guard))
        .with_state(shared))
}

/// Lets in who may read, limits the time of an answer, and adds the headers that each answer has.
async fn guard(State(shared): App, request: Request, next: Next) -> Response<Body> {
    let path = request.uri().path();
    let is_public = shared.gate.has_tokens() && (path == "/login" || path.starts_with("/files/"));
    let access =
        if is_public { Access::Granted } else { shared.gate.check(request.headers(), request.uri()) };
    let answer = async {
        match access {
            Access::Granted => next.run(request).await,
            Access::Missing if path_is_page(&request) => redirect("/login"),
            Access::Missing => unauthorized("a token is needed: send `Authorization: Bearer TOKEN`"),
            Access::Wrong => {
                shared.gate.delay_wrong().await;
                unauthorized("the token is wrong")
            }
            Access::UnknownName => failure(
                StatusCode::MISDIRECTED_REQUEST,
                "unknown host name: call the server by its address, or give it a token",
            ),
        }
    };
    let mut response = tokio::time::timeout(shared.timeout, answer).await.unwrap_or_else(|_| {
        failure(StatusCode::SERVICE_UNAVAILABLE, "the answer took too long; try again later")
    });
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn path_is_page(request: &Request) -> bool {
    request.uri().path() == "/"
}

/// Computes an answer where blocking is allowed, a limited number at a time.
async fn report<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Recorder) -> T + Send + 'static,
) -> Result<T, Response<Body>> {
    let failed = |_| failure(StatusCode::SERVICE_UNAVAILABLE, "the server ends");
    let turn = shared.reports.clone().acquire_owned().await.map_err(failed)?;
    let recorder = shared.recorder.clone();
    let work = move || {
        // Held until the work is done, also if nobody waits for it any more.
        let _turn = turn;
        work(&recorder)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| failure(StatusCode::INTERNAL_SERVER_ERROR, "the report failed"))
}

/// A report as JSON.
async fn json_report<T: Serialize + Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Recorder) -> Option<T> + Send + 'static,
) -> Response<Body> {
    let encoded = move |recorder: &Recorder| work(recorder).map(|report| serde_json::to_vec(&report));
    match report(shared, encoded).await {
        Ok(Some(Ok(bytes))) => data("application/json", bytes),
        Ok(Some(Err(_))) => failure(StatusCode::INTERNAL_SERVER_ERROR, "the report can't be written as JSON"),
        Ok(None) => failure(StatusCode::NOT_FOUND, "there is no such host or query"),
        Err(response) => response,
    }
}

fn data(media_type: &'static str, bytes: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(bytes.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn failure(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = data("application/json", json!({ "error": message }).to_string());
    *response.status_mut() = status;
    response
}

fn unauthorized(message: &str) -> Response<Body> {
    let mut response = failure(StatusCode::UNAUTHORIZED, message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn redirect(to: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(to));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn scaling(State(shared): App) -> Response<Body> {
    json_report(&shared, |recorder| Some(recorder.scaling())).await
}

async fn not_found() -> Response<Body> {
    failure(StatusCode::NOT_FOUND, "there is no such page")
}

async fn index(State(shared): App) -> Response<Body> {
    files::index(&shared.title)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response<Body> {
    files::file(&name, &headers).unwrap_or_else(|| failure(StatusCode::NOT_FOUND, "there is no such file"))
}

async fn login_form(State(shared): App) -> Response<Body> {
    if !shared.gate.has_tokens() {
        return redirect("/");
    }
    files::login(&shared.title, StatusCode::OK, "")
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

async fn login(State(shared): App, Form(login): Form<Login>) -> Response<Body> {
    if !shared.gate.is_token(login.token.trim()) {
        shared.gate.delay_wrong().await;
        return files::login(&shared.title, StatusCode::UNAUTHORIZED, "The token is wrong.");
    }
    with_cookie(redirect("/"), &shared.gate.session_cookie())
}

async fn logout(State(shared): App) -> Response<Body> {
    with_cookie(redirect("/login"), &shared.gate.no_cookie())
}

fn with_cookie(mut response: Response<Body>, cookie: &str) -> Response<Body> {
    match HeaderValue::from_str(cookie) {
        Ok(cookie) => {
            response.headers_mut().insert(SET_COOKIE, cookie);
            response
        }
        Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR, "the session can't be set"),
    }
}

async fn overview(State(shared): App) -> Response<Body> {
    json_report(&shared, |recorder| Some(recorder.overview(monotonic_ns()))).await
}

#[derive(Deserialize)]
struct ListOptions {
    limit: Option<usize>,
}

async fn queries(State(shared): App, Query(options): Query<ListOptions>) -> Response<Body> {
    let limit = options.limit.unwrap_or(QUERIES).min(QUERIES_MAX);
    json_report(&shared, move |recorder| Some(recorder.queries(limit))).await
}

async fn query(State(shared): App, Path(id): Path<String>) -> Response<Body> {
    json_report(&shared, move |recorder| recorder.query(&id)).await
}

/// A time in nanoseconds of the collector's clock. Without an end, it ends now.
#[derive(Deserialize)]
struct Span {
    from_ns: Option<u64>,
    to_ns: Option<u64>,
}

impl Span {
    fn get(&self) -> (u64, u64) {
        let to = self.to_ns.unwrap_or_else(monotonic_ns);
        (self.from_ns.unwrap_or(to.saturating_sub(SPAN_NS)), to)
    }
}

#[derive(Deserialize)]
struct SeriesOptions {
    host: String,
    group: String,
    from_ns: Option<u64>,
    to_ns: Option<u64>,
    points: Option<usize>,
}

async fn series(State(shared): App, Query(options): Query<SeriesOptions>) -> Response<Body> {
    let group = match options.group.parse() {
        Ok(group) => group,
        Err(expected) => {
            let message = format!("unknown group of figures: {expected}");
            return failure(StatusCode::BAD_REQUEST, &message);
        }
    };
    let span = Span { from_ns: options.from_ns, to_ns: options.to_ns }.get();
    let points = options.points.unwrap_or(POINTS).min(POINTS_MAX);
    json_report(&shared, move |recorder| recorder.series(&options.host, group, span, points)).await
}

async fn trace(State(shared): App, Query(span): Query<Span>) -> Response<Body> {
    let span = span.get();
    match report(&shared, move |recorder| recorder.trace(span.0, span.1)).await {
        Ok(Ok(bytes)) => {
            let mut response = data("application/json", bytes);
            let name = HeaderValue::from_static("attachment; filename=\"lightship-trace.json\"");
            response.headers_mut().insert(CONTENT_DISPOSITION, name);
            response
        }
        Ok(Err(_)) => failure(StatusCode::INTERNAL_SERVER_ERROR, "the trace can't be written"),
        Err(response) => response,
    }
}

async fn metrics(State(shared): App) -> Response<Body> {
    match report(&shared, |recorder| recorder.metrics(monotonic_ns())).await {
        Ok(Ok(text)) => data(METRICS_CONTENT_TYPE, text),
        Ok(Err(_)) => failure(StatusCode::INTERNAL_SERVER_ERROR, "the metrics can't be written"),
        Err(response) => response,
    }
}
