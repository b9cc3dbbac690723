//! A fleet whose etcd speaks TLS alone, wants a certificate of each client and a user of it, and lets tokens expire.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::etcd::Cluster;
use crate::fleet::{PATIENCE, fill, has, submit, wait_complete};
use crate::harness::{Builder, Mount, can_mount, fencefs, processes_of, run, wait_until};

const PASSWORD: &str = "s3cret-of-the-fleet";
/// How long a token is good, in seconds.
const TOKEN_SECONDS: u64 = 2;

/// Certificates and keys, made by openssl; `None`, with a word, where there is none.
fn certificates(dir: &Path) -> Option<()> {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: there is no openssl (install the package openssl)");
        return None;
    }
    let script = r#"
        cd "$1"
        key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        for authority in ca other; do
            openssl req -x509 $key -keyout $authority.key -out $authority.pem -subj "/CN=$authority" -days 2
        done
        printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' >extensions
        for who in server client; do
            # Where there are users, etcd's gateway takes no certificate with a name for itself.
            case $who in client) subject=/O=fleet ;; *) subject=/CN=$who ;; esac
            openssl req $key -keyout $who.key -out $who.csr -subj "$subject"
            openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $who.pem -days 2 -extfile extensions
        done
        openssl genrsa -out token.key 2048
        openssl rsa -in token.key -pubout -out token.pub
    "#;
    run(Command::new("sh").args(["-ec", script, "sh"]).arg(dir)).ok();
    Some(())
}

/// Users, a role below the prefix, and authentication; while connections are plain.
fn add_users(cluster: &Cluster) {
    let asked = |path: &str, body: serde_json::Value| cluster.post(0, path, &body.to_string()).unwrap();
    for (user, password) in [("root", "r00t-of-the-test"), ("fleet", PASSWORD)] {
        asked("/v3/auth/user/add", json!({ "name": user, "password": password }));
        asked("/v3/auth/role/add", json!({ "name": user }));
        asked("/v3/auth/user/grant", json!({ "user": user, "role": user }));
    }
    let (key, end) = (STANDARD.encode("fleet/"), STANDARD.encode("fleet0"));
    let permission = json!({ "permType": "READWRITE", "key": key, "range_end": end });
    asked("/v3/auth/role/grant", json!({ "name": "fleet", "perm": permission }));
    asked("/v3/auth/enable", json!({}));
}

/// A file for `--coordinator-file`.
fn words(dir: &Path, name: &str, lines: &[String]) -> PathBuf {
    let file = dir.join(name);
    fs::write(&file, lines.join("\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// Everything that others can see of a daemon.
fn shown(m: &Mount, log: &Path) -> String {
    let mut text = fs::read_to_string(log).unwrap();
    for pid in processes_of(&m.store).into_iter().map(|pid| pid.as_raw_nonzero()) {
        for name in ["cmdline", "environ"] {
            text.push_str(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).unwrap()));
        }
    }
    for name in ["status", "metrics", "requests", "fleet"] {
        text.push_str(&fs::read_to_string(m.mnt.join(".fencefs").join(name)).unwrap());
    }
    text
}

#[test]
fn tls_users_and_expiring_tokens() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = certificates(dir.path()) else { return };
    let Some(mut cluster) = Cluster::start(1) else { return };
    add_users(&cluster);
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let token = format!(
        "jwt,pub-key={},priv-key={},sign-method=RS256,ttl={TOKEN_SECONDS}s",
        file("token.pub"),
        file("token.key")
    );
    let secured: Vec<String> = [
        ("--cert-file", file("server.pem")),
        ("--key-file", file("server.key")),
        ("--trusted-ca-file", file("ca.pem")),
        ("--client-cert-auth", "true".to_owned()),
        ("--auth-token", token),
    ]
    .map(|(name, value)| format!("{name}={value}"))
    .into();
    cluster.secure(secured);
    let lines = |ca: &str, who: &str, password: &str| {
        let (certificate, key) = (format!("{who}.pem"), format!("{who}.key"));
        let own = [("cert", certificate.as_str()), ("key", &key), ("ca", ca)];
        let mut lines: Vec<String> = own.map(|(name, of)| format!("{name}={}", file(of))).into();
        lines.push(format!("coordinator={}", cluster.coordinator()));
        lines.extend([format!("user=fleet\npassword={password}")]);
        lines
    };

    // Who is not let in is told so, and his password is told to nobody.
    let wrong = words(dir.path(), "wrong", &lines("ca.pem", "client", "wr0ng-password"));
    let m = Builder::new().arg("--coordinator-file").arg(&wrong).prepare();
    let (_, why) = m.try_mount().failed();
    assert!(why.contains("does not let us in") && !why.contains("wr0ng"), "{why}");
    drop(m);
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).unwrap();
    let m = Builder::new().arg("--coordinator-file").arg(&wrong).prepare();
    let (_, why) = m.try_mount().failed();
    assert!(why.contains("chmod 600") && !why.contains("wr0ng"), "{why}");
    drop(m);
    let url = format!("{}?user=fleet&password={PASSWORD}", cluster.coordinator());
    let (code, why) = fencefs(["mount", "/nowhere", "/nowhere", "--coordinator", &url]).failed();
    assert!(code == 2 && !why.contains(PASSWORD), "{why}");

    // What etcd says in plain words is told: of a certificate that names somebody.
    let named = words(dir.path(), "named", &lines("ca.pem", "server", PASSWORD));
    let m = Builder::new().arg("--coordinator-file").arg(&named).prepare();
    let (_, why) = m.try_mount().failed();
    assert!(why.contains("CommonName") && !why.contains(PASSWORD), "{why}");
    drop(m);

    // An etcd whose certificate another has signed is not believed.
    let other = words(dir.path(), "other", &lines("other.pem", "client", PASSWORD));
    let m = Builder::new().arg("--coordinator-file").arg(&other).prepare();
    let said = m.scratch.join("said");
    let mut waiting = m.start_mounting(&said);
    let doubts = wait_until(PATIENCE, || fs::read_to_string(&said).unwrap().contains("certificate"));
    assert!(doubts, "{}", fs::read_to_string(&said).unwrap());
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    drop(m);

    let right = words(dir.path(), "right", &lines("ca.pem", "client", PASSWORD));
    let logs = [1, 2].map(|n| dir.path().join(format!("log{n}")));
    let builder = |log: &Path| {
        let b = Builder::new().arg("--coordinator-file").arg(&right);
        b.arg("--log-level").arg("debug").arg("--log-file").arg(log)
    };
    let mounts = logs.each_ref().map(|log| builder(log).mount());
    let began = Instant::now();
    let renewed = || fs::read_to_string(&logs[0]).unwrap().matches("a new token for the user fleet").count();
    let mut renewals = Vec::new();
    // Used until they have expired twice.
    while began.elapsed().as_secs() < 5 * TOKEN_SECONDS / 2 || renewals.len() < 3 {
        assert!(began.elapsed() < PATIENCE);
        mounts.iter().for_each(fill);
        renewals.push(renewed());
        let generation = submit(&mounts[renewals.len() % 2], "scope=global");
        assert_eq!(generation, renewals.len() as u64, "one for each, whatever was sent again");
        wait_complete(&mounts[0], generation);
        assert!(mounts.iter().all(|m| !has(m, "default")));
    }
    assert!(renewed() >= renewals[0] + 2, "{renewals:?}");
    for (m, log) in mounts.iter().zip(&logs) {
        assert_eq!(m.status()["last_error"], serde_json::Value::Null, "{}", m.status());
        let shown = shown(m, log);
        assert!(shown.contains("coordinator") && !shown.contains(PASSWORD), "{shown}");
    }
}
