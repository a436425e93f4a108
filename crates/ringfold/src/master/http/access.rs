//! Who may read, and who may change the run.

use super::request::Request;
use super::response::Response;
use ringfold_fabric::join_token::JoinToken;
use std::net::IpAddr;

/// The tokens of the server.
#[derive(Clone, Debug)]
pub(in crate::master) struct Access {
    /// Of operators. Without one nobody may change the run.
    pub admin: JoinToken,
    /// Of readers. Without one everybody may read.
    pub read: JoinToken,
    /// The names of this server, with or without a port. Addresses and `localhost` need not be listed.
    pub hosts: Vec<String>,
}

/// What a client may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// Nothing but see whether the master is ready.
    Nobody,
    Reader,
    Admin,
}

impl Access {
    /// What the sender of a request may do.
    pub(super) fn role(&self, request: &Request) -> Role {
        let shown = request.bearer.as_deref().unwrap_or_default();
        let (is_admin, is_reader) = (self.admin.accepts(shown), self.read.accepts(shown));
        match (is_admin, is_reader || self.read.is_none()) {
            (true, _) => Role::Admin,
            (false, true) => Role::Reader,
            (false, false) => Role::Nobody,
        }
    }

    /// What a client may do, for the web page.
    pub(super) fn describe(&self, request: &Request) -> serde_json::Value {
        let role = match self.role(request) {
            Role::Nobody => "none",
            Role::Reader => "reader",
            Role::Admin => "admin",
        };
        serde_json::json!({
            "role": role,
            "has_admin_token": !self.admin.is_none(),
            "has_read_token": !self.read.is_none(),
        })
    }

    /// Why a request to another name is not answered: a page of another site whose name resolves to this host could read it.
    pub(super) fn refuse_host(&self, request: &Request) -> Option<Response> {
        // Browsers send it.
        let host = name_of(request.host.as_deref()?);
        let is_own = |own: &String| name_of(own).eq_ignore_ascii_case(host);
        let is_known = host.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(is_own);
        let why = "this host name is not one of this server: add it to http_hosts (RINGFOLD_HTTP_HOSTS) of the master, or use \
                   its address";
        (!is_known).then(|| Response::error(403, why))
    }

    /// Why the sender may not read, if it may not.
    pub(super) fn refuse_read(&self, request: &Request) -> Option<Response> {
        let why = "a token is needed to read: send it as Authorization: Bearer, or enter it on the web page";
        (self.role(request) < Role::Reader).then(|| Response::error(401, why))
    }

    /// Why the sender may not change the run, if it may not.
    pub(super) fn refuse_command(&self, request: &Request) -> Option<Response> {
        if self.admin.is_none() {
            let why = "this master takes no commands over HTTP: start it with --admin-token-file, or use `ringfold evict` and \
                       `ringfold drain` with a certificate of the role admin";
            return Some(Response::error(403, why));
        }
        if self.role(request) < Role::Admin {
            let is_shown = request.bearer.is_some();
            let why = match is_shown {
                true => "this is not the admin token",
                false => {
                    "the admin token is needed: send it as Authorization: Bearer, or enter it on the web page"
                }
            };
            return Some(Response::error(if is_shown { 403 } else { 401 }, why));
        }
        if !is_of_same_site(request) {
            let why = "this request comes from a page of another site. Behind a proxy, pass the Host of the client on";
            return Some(Response::error(403, why));
        }
        let kind = request.content_type.as_deref().unwrap_or_default();
        let is_json =
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        (!is_json).then(|| Response::error(415, "the body must be application/json"))
    }
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    // Colons of an address are in brackets.
    let split = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    split.map_or(host, |(name, _)| name).trim_matches(['[', ']', '.'])
}

/// Whether a browser sent this for a page of this server, or something else than a browser sent it.
fn is_of_same_site(request: &Request) -> bool {
    let site = request.fetch_site.as_deref();
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return false;
    }
    match (&request.origin, &request.host) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            let at = origin.split_once("://").map(|(_, at)| at);
            at.is_some_and(|at| at.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &str) -> Request {
        let text = format!("POST /api/drain HTTP/1.1\r\nHost: a:1\r\n{headers}\r\n");
        Request::take(&mut text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn a_command_needs_the_token_json_and_the_same_site() {
        let access = Access { admin: "boss".into(), read: "".into(), hosts: Vec::new() };
        let status = |headers: &str| access.refuse_command(&request(headers)).map(|response| response.status);
        let (token, json) =
            ("Authorization: Bearer boss\r\n", "Content-Type: application/json; charset=utf-8\r\n");
        assert_eq!(status(json), Some(401));
        assert_eq!(status(&format!("Authorization: Bearer boss2\r\n{json}")), Some(403));
        assert_eq!(status(token), Some(415));
        assert_eq!(status(&format!("{token}Content-Type: text/plain\r\n")), Some(415));
        assert_eq!(status(&format!("{token}{json}")), None);
        assert_eq!(
            status(&format!("{token}{json}Origin: http://a:1\r\nSec-Fetch-Site: same-origin\r\n")),
            None
        );
        for other in ["Origin: http://evil:1\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
            assert_eq!(status(&format!("{token}{json}{other}")), Some(403), "{other}");
        }
        let closed = Access { admin: "".into(), read: "".into(), hosts: Vec::new() };
        assert_eq!(closed.refuse_command(&request(&format!("{token}{json}"))).unwrap().status, 403);
        assert_eq!(closed.refuse_command(&request("Authorization: Bearer \r\n")).unwrap().status, 403);
    }

    #[test]
    fn everybody_reads_unless_there_is_a_token_for_it() {
        let open = Access { admin: "boss".into(), read: "".into(), hosts: Vec::new() };
        assert_eq!(open.role(&request("")), Role::Reader);
        let closed = Access { admin: "boss".into(), read: "reader".into(), hosts: Vec::new() };
        assert_eq!(closed.role(&request("")), Role::Nobody);
        assert_eq!(closed.role(&request("Authorization: Bearer reader\r\n")), Role::Reader);
        assert_eq!(closed.role(&request("Authorization: Bearer boss\r\n")), Role::Admin);
        assert_eq!(closed.refuse_command(&request("Authorization: Bearer reader\r\n")).unwrap().status, 403);
    }

    #[test]
    fn only_requests_to_a_name_of_the_server_are_answered() {
        let access =
            Access { admin: "".into(), read: "".into(), hosts: vec!["head.lab".into(), "h:9".into()] };
        let refusal = |host: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            access.refuse_host(&Request::take(&mut text.as_bytes()).unwrap().unwrap())
        };
        let own = ["127.0.0.1:1", "10.0.0.7", "[::1]:48180", "LocalHost:1", "localhost.", "HEAD.lab:7", "h"];
        for host in own {
            assert!(refusal(host).is_none(), "{host}");
        }
        for host in ["evil.example:48180", "head.lab.evil.example", "127.0.0.1.evil.example", "[::1", ""] {
            assert_eq!(refusal(host).map(|response| response.status), Some(403), "{host}");
        }
    }
}
