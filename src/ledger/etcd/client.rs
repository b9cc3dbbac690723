//! Calls of etcd's gateway: endpoints one after the other until one answers, within a bound; with a user's token where
//! there is one.
//!
//! A call that is sent again may have happened before. So nothing is written but by transactions that compare what they
//! change, and each of those finds out by itself whether it was the one.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::failure::{Failure, code};
use super::wire::{Authenticated, Refusal, Version};
use crate::config::{EtcdSettings, EtcdTls, EtcdUser, limits};
use crate::error::{Error, Kind, Result};

/// The oldest release whose gateway has the form that is spoken here.
const OLDEST: (u32, u32) = (3, 4);

/// A way to a cluster.
pub(super) struct Client {
    endpoints: Vec<Endpoint>,
    agent: Agent,
    user: Option<EtcdUser>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Endpoint {
    /// As people write it.
    name: String,
    url: String,
}

#[derive(Debug)]
struct State {
    /// The endpoint that answered last.
    current: usize,
    token: Option<Arc<str>>,
    /// Since when none answers.
    silent_since: Option<Instant>,
}

/// How one attempt at one endpoint ended without an answer.
enum Attempt {
    /// Another endpoint may answer, or this one later.
    Elsewhere(String),
    /// The token is not, or no longer, good.
    Token,
    /// No other endpoint would say anything else.
    Final(Failure),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Client {
    /// A way to the cluster of these settings. Nothing is asked of it yet.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for certificates that are none; what reading them says.
    pub(super) fn new(settings: &EtcdSettings) -> Result<Client> {
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let endpoints = settings
            .endpoints
            .iter()
            .map(|name| Endpoint { name: name.clone(), url: format!("{scheme}://{name}") });
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // A coordinator is asked directly, whatever the environment says about the web.
            .proxy(None)
            .user_agent(concat!("fencefs/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(limits::ETCD_CONNECT_WAIT))
            .timeout_global(Some(limits::ETCD_ATTEMPT_WAIT));
        if let Some(tls) = &settings.tls {
            config = config.tls_config(tls_config(tls)?);
        }
        Ok(Client {
            endpoints: endpoints.collect(),
            agent: config.build().new_agent(),
            user: settings.user.clone(),
            state: Mutex::new(State { current: 0, token: None, silent_since: None }),
        })
    }

    /// The answer to a call.
    pub(super) fn call<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).expect("plain fields have a text");
        let (began, mut pause) = (Instant::now(), limits::ETCD_FIRST_PAUSE);
        loop {
            let mut last = String::new();
            let first = self.state.lock().current;
            for n in 0..self.endpoints.len() {
                let n = (first + n) % self.endpoints.len();
                let endpoint = &self.endpoints[n];
                match self.attempt(endpoint, path, &body) {
                    Ok(answer) => {
                        let mut state = self.state.lock();
                        (state.current, state.silent_since) = (n, None);
                        drop(state);
                        return serde_json::from_value(answer).map_err(|e| garbled(endpoint, e));
                    }
                    Err(Attempt::Final(failure)) => {
                        self.state.lock().silent_since = None;
                        return Err(failure);
                    }
                    Err(Attempt::Elsewhere(why)) => last = format!("{}: {why}", endpoint.name),
                    Err(Attempt::Token) => {
                        last = format!("{}: the user's token does not last", endpoint.name)
                    }
                }
            }
            let silent = {
                let mut state = self.state.lock();
                // Each round begins with another one: one that hangs costs its wait once in as many rounds.
                state.current = (first + 1) % self.endpoints.len();
                state.silent_since.get_or_insert(began).elapsed()
            };
            // Who has been silent for longer than anybody is waited for is asked once.
            if silent + pause >= limits::ETCD_PATIENCE {
                return Err(self.unreachable(silent, last));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(limits::ETCD_LAST_PAUSE);
        }
    }

    /// Has the endpoint that answered last tell what happens, a line each time, until it does not, or for as long as is
    /// good. Nothing is repeated: what a stream says is no more than a reason to ask.
    pub(super) fn follow(&self, path: &str, body: &impl Serialize, heard: &dyn Fn()) -> Result<(), Failure> {
        let body = serde_json::to_vec(body).expect("plain fields have a text");
        let (endpoint, token) = {
            let state = self.state.lock();
            (&self.endpoints[state.current], state.token.clone())
        };
        let failed = |why: String| self.unreachable(Duration::ZERO, format!("{}: {why}", endpoint.name));
        let request = self.agent.post(format!("{}{path}", endpoint.url));
        let mut request = request
            .config()
            .timeout_global(None)
            .timeout_recv_response(Some(limits::ETCD_ATTEMPT_WAIT))
            .timeout_recv_body(Some(limits::ETCD_WATCH))
            .build();
        if let Some(token) = token {
            request = request.header("Authorization", token.as_ref());
        }
        let mut answer = request.send(&body).map_err(|e| failed(said(&e)))?;
        if answer.status() != 200 {
            return Err(failed(format!("HTTP status {}", answer.status())));
        }
        let mut lines = BufReader::new(answer.body_mut().as_reader()).take(limits::ETCD_ANSWER_BYTES);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if let Some(refusal) = serde_json::from_slice(&line).ok().as_ref().and_then(Refusal::of) {
                return Err(failed(refusal.message));
            }
            heard();
            line.clear();
        }
        Ok(())
    }

    /// Refuses at once while no endpoint answers. Whoever polls finds out when one does.
    pub(super) fn require_answering(&self) -> Result<(), Failure> {
        match self.state.lock().silent_since.map(|since| since.elapsed()) {
            None => Ok(()),
            Some(silent) => Err(self.unreachable(silent, "nothing".to_owned())),
        }
    }

    fn unreachable(&self, silent: Duration, last: String) -> Failure {
        let endpoints = self.endpoints.iter().map(|e| e.name.clone()).collect();
        Failure::Unreachable { endpoints, silent, last }
    }

    /// One call at one endpoint; where the user's token is not good any more, with a new one.
    fn attempt(&self, endpoint: &Endpoint, path: &str, body: &[u8]) -> Result<Value, Attempt> {
        let token = self.state.lock().token.clone();
        match self.send(endpoint, path, body, token.as_deref()) {
            Err(Attempt::Token) => {
                let token = self.authenticate(endpoint)?;
                self.send(endpoint, path, body, token.as_deref())
            }
            other => other,
        }
    }

    /// A new token; `None` where the cluster asks nobody who he is.
    fn authenticate(&self, endpoint: &Endpoint) -> Result<Option<Arc<str>>, Attempt> {
        let refused =
            |message: String| Attempt::Final(Failure::Auth { endpoint: endpoint.name.clone(), message });
        let Some(user) = &self.user else { return Err(refused("it wants a user, and none is given".into())) };
        let body = json!({ "name": user.name, "password": user.password.expose() }).to_string();
        let answer = match self.send(endpoint, "/v3/auth/authenticate", body.as_bytes(), None) {
            Err(Attempt::Final(Failure::Refused { code: code::FAILED_PRECONDITION, .. })) => return Ok(None),
            Err(Attempt::Final(Failure::Refused { message, .. })) => return Err(refused(message)),
            Err(Attempt::Token) => return Err(refused("it refuses user and password".into())),
            other => other?,
        };
        let answer: Authenticated =
            serde_json::from_value(answer).map_err(|e| Attempt::Final(garbled(endpoint, e)))?;
        log::debug!("a new token for the user {} of etcd at {}", user.name, endpoint.name);
        let token: Arc<str> = answer.token.into();
        self.state.lock().token = Some(Arc::clone(&token));
        Ok(Some(token))
    }

    fn send(
        &self,
        endpoint: &Endpoint,
        path: &str,
        body: &[u8],
        token: Option<&str>,
    ) -> Result<Value, Attempt> {
        let mut request =
            self.agent.post(format!("{}{path}", endpoint.url)).header("Content-Type", "application/json");
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let elsewhere = |e: ureq::Error| Attempt::Elsewhere(said(&e));
        let mut answer = request.send(body).map_err(elsewhere)?;
        let status = answer.status().as_u16();
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(limits::ETCD_ANSWER_BYTES)
            .read_to_vec()
            .map_err(elsewhere)?;
        let answer = serde_json::from_slice::<Value>(&bytes);
        if let Some(refusal) = answer.as_ref().ok().and_then(Refusal::of) {
            return Err(judge(endpoint, status, refusal));
        }
        match (status, answer) {
            (200, Ok(answer)) if answer.is_object() => Ok(answer),
            (200, Ok(_)) => Err(Attempt::Elsewhere("an answer that is no object".to_owned())),
            // Cut off, or written by what stands in between.
            (200, Err(e)) => Err(Attempt::Elsewhere(format!("an answer that is no JSON ({e})"))),
            (404, _) => Err(Attempt::Final(self.without_gateway(endpoint)?)),
            (401, _) => Err(Attempt::Token),
            // In plain words: a certificate with a name, HTTP where TLS is spoken.
            (400..=407, _) => {
                let message = String::from_utf8_lossy(&bytes).trim().to_owned();
                Err(Attempt::Final(Failure::Refused { endpoint: endpoint.name.clone(), code: 0, message }))
            }
            _ => Err(Attempt::Elsewhere(format!("HTTP status {status}"))),
        }
    }

    /// Why an endpoint does not know the gateway's paths.
    fn without_gateway(&self, endpoint: &Endpoint) -> Result<Failure, Attempt> {
        let elsewhere = |e: ureq::Error| Attempt::Elsewhere(said(&e));
        let mut answer = self.agent.get(format!("{}/version", endpoint.url)).call().map_err(elsewhere)?;
        let text = answer.body_mut().with_config().limit(limits::ETCD_ANSWER_BYTES).read_to_string();
        let name = endpoint.name.clone();
        Ok(match serde_json::from_str::<Version>(&text.map_err(elsewhere)?) {
            Ok(version) if version.is_at_least(OLDEST) => Failure::GatewayOff { endpoint: name },
            Ok(version) => Failure::TooOld { endpoint: name, version: version.etcdserver },
            Err(_) => Failure::Garbled { endpoint: name, what: "it knows neither /v3 nor /version".into() },
        })
    }
}

/// Whether a refusal is this member's, or of this moment, or for good.
fn judge(endpoint: &Endpoint, status: u16, refusal: Refusal) -> Attempt {
    let Refusal { code, message } = refusal;
    let name = endpoint.name.clone();
    let says = |part: &str| message.contains(part);
    match code {
        code::UNAUTHENTICATED => Attempt::Token,
        // The roles changed since the token was made, or there is none.
        code::INVALID_ARGUMENT if says("auth store is old") || says("user name is empty") => Attempt::Token,
        code::PERMISSION_DENIED => Attempt::Final(Failure::Auth { endpoint: name, message }),
        code::UNAVAILABLE | code::CANCELLED | code::DEADLINE_EXCEEDED => Attempt::Elsewhere(message),
        code::RESOURCE_EXHAUSTED if !says("database space") => Attempt::Elsewhere(message),
        // Old releases wrap what is of the moment in "unknown".
        _ if status == 503 || says("leader") || says("timed out") => Attempt::Elsewhere(message),
        _ => Attempt::Final(Failure::Refused { endpoint: name, code, message }),
    }
}

fn garbled(endpoint: &Endpoint, e: serde_json::Error) -> Failure {
    Failure::Garbled { endpoint: endpoint.name.clone(), what: e.to_string() }
}

fn said(e: &ureq::Error) -> String {
    match e {
        ureq::Error::Io(e) => e.to_string(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        other => other.to_string(),
    }
}

fn tls_config(tls: &EtcdTls) -> Result<TlsConfig> {
    let bad = |path: &std::path::Path, what: &str| {
        Error::new(Kind::Invalid, format!("{} {what}, in PEM form", path.display()))
    };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|e| Error::os(format!("cannot read {}", path.display()), e))
    };
    let certificates = |path: &std::path::Path| -> Result<Vec<Certificate<'static>>> {
        let pem = read(path)?;
        let items = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(_) => Some(Err(bad(path, "is no file of certificates"))),
        });
        let found = items.collect::<Result<Vec<_>>>()?;
        if found.is_empty() {
            return Err(bad(path, "has no certificate"));
        }
        Ok(found)
    };
    let client = match &tls.identity {
        None => None,
        Some((certificate, key)) => {
            let key_pem = read(key)?;
            let private = PrivateKey::from_pem(&key_pem).map_err(|_| bad(key, "has no private key"))?;
            Some(ClientCert::new_with_certs(&certificates(certificate)?, private))
        }
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(certificates(&tls.ca)?)))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}
