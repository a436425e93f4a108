//! What is answered to which request.

use super::access::{Access, Role};
use super::feed::Supplied;
use super::request::{Method, Request};
use super::response::Response;
use super::{assets, metrics};
use crate::master::inquiry::Question;
use ringfold_proto::limits::TEXT_BYTES_MAX;
use serde::Deserialize;

/// What is to be done for a request.
#[derive(Debug)]
pub(super) enum Plan {
    Answer(Response),
    /// The answer needs a status.
    Status(StatusUse),
    /// The master has to do something.
    Command(Question),
    /// The client gets messages until it closes the connection.
    Stream,
}

/// What is made of a status.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatusUse {
    Json,
    Metrics,
    Health,
    Ready { shows_verdict: bool },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Evict {
    peer: String,
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    on: bool,
}

/// What is to be done for a request.
pub(super) fn plan(access: &Access, request: &Request) -> Plan {
    if let Some(refusal) = access.refuse_host(request) {
        return Plan::Answer(refusal);
    }
    let is_command = matches!(request.path.as_str(), "/api/evict" | "/api/drain");
    match (request.method, is_command) {
        (Method::Post, true) => command(access, request).unwrap_or_else(Plan::Answer),
        (Method::Get | Method::Head, false) => read(access, request),
        (Method::Post, false) => Plan::Answer(Response::error(405, "this is read with GET")),
        (Method::Get | Method::Head, true) => {
            Plan::Answer(Response::error(405, "commands are sent with POST"))
        }
    }
}

fn read(access: &Access, request: &Request) -> Plan {
    if let Some(asset) = assets::find(&request.path) {
        return Plan::Answer(asset);
    }
    let guarded = |plan| access.refuse_read(request).map_or(plan, Plan::Answer);
    match request.path.as_str() {
        // Probes of supervisors have no token.
        "/healthz" => Plan::Status(StatusUse::Health),
        "/readyz" => Plan::Status(StatusUse::Ready { shows_verdict: access.role(request) >= Role::Reader }),
        "/metrics" => guarded(Plan::Status(StatusUse::Metrics)),
        "/api/status" => guarded(Plan::Status(StatusUse::Json)),
        "/api/events" => guarded(Plan::Stream),
        "/api/session" => {
            let json = access.describe(request).to_string();
            Plan::Answer(Response::json(200, json.into_bytes().into()))
        }
        _ => Plan::Answer(Response::error(
            404,
            "nothing is here: see /, /metrics, /healthz, /readyz, /api/status, /api/events, /api/session",
        )),
    }
}

fn command(access: &Access, request: &Request) -> Result<Plan, Response> {
    if let Some(refusal) = access.refuse_command(request) {
        return Err(refusal);
    }
    let invalid = |error: serde_json::Error| Response::error(400, &format!("invalid request: {error}"));
    if request.path == "/api/drain" {
        let Drain { on } = serde_json::from_slice(&request.body).map_err(invalid)?;
        return Ok(Plan::Command(Question::Drain { on }));
    }
    let Evict { peer, reason } = serde_json::from_slice(&request.body).map_err(invalid)?;
    let reason = reason.unwrap_or_else(|| "an operator asked for it".into());
    if peer.len().max(reason.len()) > TEXT_BYTES_MAX {
        let why = format!("invalid request: the name and the reason must not exceed {TEXT_BYTES_MAX} bytes");
        return Err(Response::error(400, &why));
    }
    Ok(Plan::Command(Question::Evict { peer, reason }))
}

impl StatusUse {
    /// The response.
    pub(super) fn respond(self, supplied: &Supplied, http: &metrics::HttpCounters) -> Response {
        let status = &supplied.snapshot.status;
        match self {
            Self::Json => Response::json(200, supplied.json()),
            Self::Metrics => Response::metrics(metrics::render(&supplied.snapshot, http)),
            Self::Health => Response::text(200, "ok"),
            Self::Ready { shows_verdict } => {
                let is_ready = status.master.active || status.master.active_position.is_some();
                let verdict = match (shows_verdict, is_ready) {
                    (true, _) => status.run.verdict.as_str(),
                    (false, true) => "ready",
                    (false, false) => "not ready",
                };
                Response::text(if is_ready { 200 } else { 503 }, verdict)
            }
        }
    }

    /// The response if the thread of the master does not answer.
    pub(super) fn respond_stalled(self) -> Response {
        let why = "the master does not answer";
        match self {
            Self::Json => Response::error(503, why),
            _ => Response::text(503, why),
        }
    }
}
