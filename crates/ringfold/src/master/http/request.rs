//! Requests of HTTP/1.1, as far as a master answers them.

use super::limits;

/// A method that is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
}

/// A complete request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Whether the client sends another request on this connection.
    pub keeps_alive: bool,
    pub host: Option<String>,
    pub origin: Option<String>,
    /// What a browser says of the page that has sent it.
    pub fetch_site: Option<String>,
    /// The token that was shown.
    pub bearer: Option<String>,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
}

/// Why a request is not answered: a status, and a sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestError(pub u16, pub &'static str);

const INVALID: RequestError = RequestError(400, "invalid request: it is not HTTP/1.1");

impl Request {
    /// Takes a request off the front of `input`; none if it is not complete.
    pub(crate) fn take(input: &mut &[u8]) -> Result<Option<Self>, RequestError> {
        let mut headers = [httparse::EMPTY_HEADER; limits::HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        let head_bytes = match parsed.parse(input) {
            Ok(httparse::Status::Complete(bytes)) if bytes <= limits::HEAD_BYTES_MAX => bytes,
            Ok(httparse::Status::Partial) if input.len() <= limits::HEAD_BYTES_MAX => return Ok(None),
            Ok(_) => return Err(RequestError(431, "the headers are too long: at most 8 KiB are read")),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(RequestError(431, "too many headers: at most 64 are read"));
            }
            Err(httparse::Error::Version) => {
                return Err(RequestError(505, "unsupported version of HTTP: use 1.1"));
            }
            Err(_) => return Err(INVALID),
        };
        let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
            return Err(INVALID);
        };
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            _ => return Err(RequestError(405, "unknown method: GET, HEAD and POST are answered")),
        };
        let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
        if !path.starts_with('/') {
            return Err(RequestError(400, "invalid request: its path does not begin with /"));
        }
        let headers = Headers(parsed.headers);
        if headers.has("transfer-encoding") {
            return Err(RequestError(501, "bodies in pieces are not read: send a Content-Length"));
        }
        let body_bytes = headers.content_length()?;
        if body_bytes > limits::BODY_BYTES_MAX {
            return Err(RequestError(413, "the body is too long: at most 16 KiB are read"));
        }
        let host = headers.one("host")?;
        if version == 1 && host.is_none() {
            return Err(RequestError(400, "invalid request: it has no Host"));
        }
        let connection = headers.one("connection")?.unwrap_or_default().to_ascii_lowercase();
        let has = |word: &str| connection.split(',').any(|part| part.trim() == word);
        let request = Self {
            method,
            path,
            keeps_alive: if version == 1 { !has("close") } else { has("keep-alive") },
            host,
            origin: headers.one("origin")?,
            fetch_site: headers.one("sec-fetch-site")?,
            bearer: headers.one("authorization")?.and_then(|text| bearer(&text)),
            content_type: headers.one("content-type")?,
            body: Vec::new(),
        };
        let Some(body) = input.get(head_bytes..head_bytes + body_bytes) else { return Ok(None) };
        let request = Self { body: body.to_vec(), ..request };
        *input = &input[head_bytes + body_bytes..];
        Ok(Some(request))
    }
}

struct Headers<'a>(&'a [httparse::Header<'a>]);

impl Headers<'_> {
    fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// A header that may be there once.
    fn one(&self, name: &str) -> Result<Option<String>, RequestError> {
        let mut values = self.all(name);
        let Some(value) = values.next() else { return Ok(None) };
        let text = core::str::from_utf8(value).ok().filter(|_| values.next().is_none());
        text.map(|text| Some(text.trim().to_owned()))
            .ok_or(RequestError(400, "invalid request: a header is there twice, or is not text"))
    }

    fn content_length(&self) -> Result<usize, RequestError> {
        let Some(text) = self.one("content-length")? else { return Ok(0) };
        let is_number = !text.is_empty() && text.len() < 19 && text.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = is_number.then(|| text.parse().ok()).flatten();
        bytes.ok_or(RequestError(400, "invalid request: its Content-Length is not a number"))
    }
}

/// The token of an `Authorization` header.
fn bearer(text: &str) -> Option<String> {
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<Option<Request>, u16> {
        Request::take(&mut text.as_bytes()).map_err(|error| error.0)
    }

    #[test]
    fn a_request_is_taken_when_it_is_complete_and_what_follows_is_left() {
        let text = "POST /api/drain?x=1 HTTP/1.1\r\nHost: a:1\r\nAuthorization: bearer  t \r\ncontent-length: 2\r\n\r\n{}GET /";
        let complete = text.len() - "GET /".len();
        for length in 0..complete {
            assert_eq!(take(&text[..length]), Ok(None), "{length}");
        }
        let mut input = text.as_bytes();
        let request = Request::take(&mut input).unwrap().unwrap();
        assert_eq!(input, b"GET /");
        assert_eq!(
            (request.method, request.path.as_str(), &request.body[..]),
            (Method::Post, "/api/drain", &b"{}"[..])
        );
        assert_eq!((request.bearer.as_deref(), request.host.as_deref()), (Some("t"), Some("a:1")));
        assert!(request.keeps_alive);
    }

    #[test]
    fn the_connection_is_kept_as_the_client_asks() {
        let kept = |text: &str| take(text).unwrap().unwrap().keeps_alive;
        assert!(kept("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(!kept("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n"));
        assert!(!kept("GET / HTTP/1.0\r\n\r\n"));
        assert!(kept("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    }

    #[test]
    fn what_is_invalid_or_too_long_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(9000));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(70));
        for (text, status) in [
            ("\u{16}\u{3}\u{1}", 400),
            ("GET /\u{1} HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET ?x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 505),
            ("PUT / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16385\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
            (&long, 431),
            (&long[..8500], 431),
            (&many, 431),
        ] {
            assert_eq!(take(text), Err(status), "{text:?}");
        }
    }
}
