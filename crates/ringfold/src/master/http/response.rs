//! Responses.

use ringfold_fabric::connection::Connection;
use ringfold_fabric::memory::View;
use std::fmt::Write;

/// What may be shown on the web page: only what this server has.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A response.
#[derive(Clone, Debug)]
pub(super) struct Response {
    pub status: u16,
    content_type: &'static str,
    body: Body,
    /// Whether browsers may keep it, if they ask whether it has changed.
    is_asset: bool,
}

#[derive(Clone, Debug)]
enum Body {
    Text(String),
    Asset(&'static str),
    Shared(View),
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Asset(text) => text.len(),
            Self::Shared(view) => view.len(),
        }
    }
}

impl Response {
    /// Plain text, with the end of a line.
    pub(super) fn text(status: u16, text: impl Into<String>) -> Self {
        let body = Body::Text(text.into() + "\n");
        Self { status, content_type: "text/plain; charset=utf-8", body, is_asset: false }
    }

    /// JSON that several clients get.
    pub(super) fn json(status: u16, json: View) -> Self {
        Self { status, content_type: "application/json", body: Body::Shared(json), is_asset: false }
    }

    /// An object with one text.
    pub(super) fn object(status: u16, key: &str, text: &str) -> Self {
        let json = serde_json::json!({ key: text }).to_string();
        Self { status, content_type: "application/json", body: Body::Text(json), is_asset: false }
    }

    /// Why a request was refused, as JSON.
    pub(super) fn error(status: u16, why: &str) -> Self {
        Self::object(status, "error", why)
    }

    /// The text format of Prometheus.
    pub(super) fn metrics(text: String) -> Self {
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        Self { status: 200, content_type, body: Body::Text(text), is_asset: false }
    }

    /// A file of the web page.
    pub(super) fn asset(content_type: &'static str, text: &'static str) -> Self {
        Self { status: 200, content_type, body: Body::Asset(text), is_asset: true }
    }

    /// Queues it. A response to `HEAD` has no body.
    pub(super) fn send(self, connection: &mut Connection, is_head: bool, keeps_alive: bool) {
        let mut head =
            head(self.status, self.content_type, if self.is_asset { "no-cache" } else { "no-store" });
        // Writing to a text cannot fail.
        let _ = write!(head, "Content-Length: {}\r\n", self.body.len());
        match self.status {
            401 => head.push_str("WWW-Authenticate: Bearer\r\n"),
            405 => head.push_str("Allow: GET, HEAD, POST\r\n"),
            _ => {}
        }
        head.push_str(if keeps_alive { "\r\n" } else { "Connection: close\r\n\r\n" });
        match self.body {
            _ if is_head => connection.send(head.as_bytes()),
            Body::Text(text) => connection.send((head + &text).as_bytes()),
            Body::Asset(text) => connection.send((head + text).as_bytes()),
            // All clients of a moment share the memory of a long text.
            Body::Shared(view) => connection.send_put(head.as_bytes(), view.lease(0..view.len()), None),
        }
    }
}

/// Queues the head of a stream of events, which ends with the connection.
pub(super) fn send_stream_head(connection: &mut Connection) {
    let head = head(200, "text/event-stream", "no-store");
    // Proxies must not collect messages.
    connection.send((head + "X-Accel-Buffering: no\r\nConnection: close\r\n\r\n").as_bytes());
}

fn head(status: u16, content_type: &str, cache: &str) -> String {
    format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nCache-Control: {cache}\r\nContent-Security-Policy: {POLICY}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n",
        reason(status)
    )
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}
