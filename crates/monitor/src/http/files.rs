//! The files of the page, which are part of the program.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, Response, StatusCode};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file: its name, media type and content.
type File = (&'static str, &'static str, &'static [u8]);

/// The files that pages refer to.
const FILES: &[File] = &[
    ("style.css", CSS, include_bytes!("page/style.css")),
    ("app.js", SCRIPT, include_bytes!("page/app.js")),
    ("format.js", SCRIPT, include_bytes!("page/format.js")),
    ("hosts.js", SCRIPT, include_bytes!("page/hosts.js")),
    ("timelines.js", SCRIPT, include_bytes!("page/timelines.js")),
    ("traffic.js", SCRIPT, include_bytes!("page/traffic.js")),
    ("queries.js", SCRIPT, include_bytes!("page/queries.js")),
    ("scaling.js", SCRIPT, include_bytes!("page/scaling.js")),
    ("detail.js", SCRIPT, include_bytes!("page/detail.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("page/icon.svg")),
    ("uPlot.iife.min.js", SCRIPT, include_bytes!("page/vendor/uPlot.iife.min.js")),
    ("uPlot.min.css", CSS, include_bytes!("page/vendor/uPlot.min.css")),
];

/// The pages, in which `{title}` and `{message}` are replaced.
const INDEX: &str = include_str!("page/index.html");
const LOGIN: &str = include_str!("page/login.html");

/// The answer with a file; `None` if there is none of this name.
pub(super) fn file(name: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let (_, media_type, content) = FILES.iter().find(|file| file.0 == name)?;
    let tag = format!("\"{}\"", &blake3::hash(content).to_hex()[..16]);
    let is_same = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let (status, body) = match is_same {
        true => (StatusCode::NOT_MODIFIED, Body::empty()),
        false => (StatusCode::OK, Body::from(*content)),
    };
    let response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, *media_type)
        .header(CACHE_CONTROL, "no-cache")
        .header(ETAG, tag);
    response.body(body).ok()
}

/// The page.
pub(super) fn index(title: &str) -> Response<Body> {
    page(StatusCode::OK, INDEX.replace("{title}", &escape(title)))
}

/// The form for a token.
pub(super) fn login(title: &str, status: StatusCode, message: &str) -> Response<Body> {
    page(status, LOGIN.replace("{title}", &escape(title)).replace("{message}", &escape(message)))
}

fn page(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, axum::http::HeaderValue::from_static(HTML));
    headers.insert(CACHE_CONTROL, axum::http::HeaderValue::from_static("no-store"));
    response
}

/// Text in HTML, also in the value of an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
