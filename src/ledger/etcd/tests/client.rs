//! Answers that go wrong, by a server that says what a test wants said.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use crate::config::{Coordinator, CoordinatorWords, EtcdSettings};
use crate::error::{Error, Kind};
use crate::ledger::tests::etcd_server::EtcdServer;

/// What the server does with a request.
enum Say {
    /// Status and body.
    This(u16, &'static str),
    /// Half a body, and the connection ends.
    Cut,
    /// The connection ends without a word.
    Nothing,
}

type Heard = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// Answers each request as `say` has it; the endpoint, and the paths and tokens of what was asked.
fn serving(say: impl Fn(&str, Option<&str>) -> Say + Send + 'static) -> (String, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let heard = Heard::default();
    let noted = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &say, &noted);
        }
    });
    (endpoint, heard)
}

fn answer(stream: TcpStream, say: &impl Fn(&str, Option<&str>) -> Say, heard: &Heard) {
    let (mut lines, mut length, mut path, mut token) = (BufReader::new(&stream), 0, String::new(), None);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let line = line.trim_end();
        if path.is_empty() {
            path = line.split(' ').nth(1).unwrap().to_owned();
        } else if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "authorization" => token = Some(value.to_owned()),
                _ => {}
            }
        } else {
            break;
        }
    }
    lines.read_exact(&mut vec![0; length]).unwrap();
    heard.lock().push((path.clone(), token.clone()));
    let (status, body, claimed) = match say(&path, token.as_deref()) {
        Say::This(status, body) => (status, body, body.len()),
        Say::Cut => (200, "{\"half", 100),
        Say::Nothing => return,
    };
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {claimed}\r\nConnection: close\r\n\r\n{body}");
    drop((&stream).write_all(head.as_bytes()));
}

fn client(endpoints: &[&str], more: &str) -> Client {
    let mut words: CoordinatorWords = format!("etcd://{}/p", endpoints.join(",")).parse().unwrap();
    words.add_file(more).unwrap();
    let Coordinator::Etcd(settings) = words.coordinator().unwrap() else { panic!("local") };
    Client::new(&settings).unwrap()
}

fn call(client: &Client) -> Result<Value, Failure> {
    client.call("/v3/kv/txn", &json!({}))
}

/// An endpoint where nobody listens.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn the_next_endpoint_is_asked_until_one_answers() {
    let (good, heard) = serving(|_, _| Say::This(200, r#"{"header":{}}"#));
    let troubled: [fn(&str, Option<&str>) -> Say; 7] = [
        |_, _| Say::Cut,
        |_, _| Say::Nothing,
        |_, _| {
            Say::This(503, r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#)
        },
        |_, _| {
            Say::This(200, r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#)
        },
        |_, _| {
            Say::This(
                500,
                r#"{"error":"etcdserver: leader changed","message":"etcdserver: leader changed","code":2}"#,
            )
        },
        |_, _| Say::This(200, "not JSON"),
        |_, _| Say::This(502, "<html>bad gateway</html>"),
    ];
    for (n, trouble) in troubled.into_iter().enumerate() {
        let (bad, asked) = serving(trouble);
        let client = client(&[&bad, &nobody(), &good], "");
        assert_eq!(call(&client), Ok(json!({"header": {}})), "{n}");
        assert!(!asked.lock().is_empty());
        // Who answered is asked first from now on.
        asked.lock().clear();
        call(&client).unwrap();
        assert!(asked.lock().is_empty(), "{n}");
    }
    assert_eq!(heard.lock().len(), 14);
}

#[test]
fn nobody_there_is_an_error_that_names_everybody() {
    let (one, two) = (nobody(), nobody());
    let client = client(&[&one, &two], "");
    let failure = call(&client).unwrap_err();
    assert!(matches!(&failure, Failure::Unreachable { endpoints, .. } if *endpoints == [one.clone(), two]));
    let e = Error::from(failure);
    assert_eq!(e.kind(), Kind::Unreachable);
    assert!(e.to_string().contains(&one) && e.to_string().contains("quorum"), "{e}");
    // The second time nobody is waited for.
    let began = std::time::Instant::now();
    call(&client).unwrap_err();
    assert!(began.elapsed() < crate::config::limits::ETCD_PATIENCE);
}

#[test]
fn what_etcd_will_not_do_is_not_asked_twice() {
    for (status, answer, kind) in [
        (
            400,
            r#"{"error":"etcdserver: key is not provided","message":"etcdserver: key is not provided","code":3}"#,
            Kind::Io(libc::EREMOTEIO),
        ),
        (
            429,
            r#"{"error":"x","message":"etcdserver: mvcc: database space exceeded","code":8}"#,
            Kind::NoSpace,
        ),
        (403, r#"{"error":"x","message":"etcdserver: permission denied","code":7}"#, Kind::AccessDenied),
        (400, "Client sent an HTTP request to an HTTPS server.", Kind::Io(libc::EREMOTEIO)),
        (
            200,
            r#"{"error":{"code":11,"message":"etcdserver: mvcc: required revision has been compacted"}}"#,
            Kind::Io(libc::EREMOTEIO),
        ),
    ] {
        let (endpoint, heard) = serving(move |_, _| Say::This(status, answer));
        let failure = call(&client(&[&endpoint, &endpoint], "")).unwrap_err();
        let e = Error::from(failure);
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains(&endpoint), "{e}");
        assert_eq!(heard.lock().len(), 1, "{answer}");
    }
}

#[test]
fn a_gateway_that_is_not_there_is_told_from_an_old_etcd() {
    for (version, kind, word) in [
        (
            Say::This(200, r#"{"etcdserver":"3.4.23","etcdcluster":"3.4.0"}"#),
            Kind::Unsupported,
            "enable-grpc-gateway",
        ),
        (
            Say::This(200, r#"{"etcdserver":"3.3.25","etcdcluster":"3.3.0"}"#),
            Kind::Unsupported,
            "3.4 or newer",
        ),
        (Say::This(404, "what?"), Kind::Corrupt, "neither"),
    ] {
        let version = Mutex::new(Some(version));
        let (endpoint, _) = serving(move |path, _| match path {
            "/version" => version.lock().take().unwrap(),
            _ => Say::This(404, "404 page not found"),
        });
        let e = Error::from(call(&client(&[&endpoint], "")).unwrap_err());
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains(word) && e.to_string().contains(&endpoint), "{e}");
    }
}

#[test]
fn a_token_that_ran_out_is_renewed_and_a_wrong_password_is_said() {
    let (endpoint, heard) = serving(|path, token| match (path, token) {
        ("/v3/auth/authenticate", None) => Say::This(200, r#"{"header":{},"token":"t.1"}"#),
        (_, Some("t.1")) => Say::This(200, "{}"),
        _ => Say::This(401, r#"{"error":"x","message":"etcdserver: invalid auth token","code":16}"#),
    });
    let with_user = client(&[&endpoint], "user=u\npassword=p");
    call(&with_user).unwrap();
    call(&with_user).unwrap();
    let tokens: Vec<_> = heard.lock().iter().map(|(_, token)| token.clone()).collect();
    assert_eq!(tokens, [None, None, Some("t.1".into()), Some("t.1".into())]);
    let e = Error::from(call(&client(&[&endpoint], "")).unwrap_err());
    assert_eq!(e.kind(), Kind::AccessDenied);
    assert!(e.to_string().contains("wants a user"), "{e}");

    let (endpoint, _) = serving(|path, _| match path {
        "/v3/auth/authenticate" => Say::This(
            400,
            r#"{"message":"etcdserver: authentication failed, invalid user ID or password","code":3}"#,
        ),
        _ => Say::This(400, r#"{"message":"etcdserver: user name is empty","code":3}"#),
    });
    let e = Error::from(call(&client(&[&endpoint], "user=u\npassword=secret")).unwrap_err());
    assert_eq!(e.kind(), Kind::AccessDenied);
    assert!(e.to_string().contains("invalid user ID") && !e.to_string().contains("secret"), "{e}");
}

#[test]
fn certificates_that_are_none_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, "no certificate").unwrap();
    for (ca, kind) in [(file.clone(), Kind::Invalid), (dir.path().join("none"), Kind::NotFound)] {
        let mut words: CoordinatorWords = "etcd://h:1/p".parse().unwrap();
        words.add_file(&format!("ca={}", ca.display())).unwrap();
        let Coordinator::Etcd(settings) = words.coordinator().unwrap() else { panic!("local") };
        let e = Client::new(&settings).unwrap_err();
        assert_eq!(e.kind(), kind);
        assert!(e.to_string().contains(ca.to_str().unwrap()), "{e}");
    }
}

/// A real etcd with its gateway switched off.
#[test]
fn an_etcd_without_its_gateway_is_named() {
    let Some(server) = EtcdServer::start(&["--enable-grpc-gateway=false"]) else { return };
    let settings = EtcdSettings { prefix: "p".into(), ..server.settings() };
    let e = Error::from(call(&Client::new(&settings).unwrap()).unwrap_err());
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.to_string().contains("enable-grpc-gateway"), "{e}");
}
