//! Two ends over a real socket, with certificates of every kind.

use super::authority::Pair;
use super::rig::Authority;
use super::*;
use proto_common::message::ToScheduler;
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(10);
const JOB: JobId = JobId(7);

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, dialled)
}

/// A server of job 7 that this authority vouches for, and a worker that says goodbye to it: what each of them meets.
async fn meet(
    accepting: &Security,
    dialling: &Security,
) -> (Result<Option<ToScheduler>, FrameError>, Result<Option<ToScheduler>, FrameError>) {
    let (accepted, dialled) = sockets().await;
    let accept = async {
        let mut link = accepting.accept(accepted, LIMIT).await?;
        let heard = link.receive_within::<ToScheduler>(LIMIT).await?;
        link.send_within(&ToScheduler::LinksReady, LIMIT).await?;
        link.permits(JOB, Role::Worker)?;
        Ok(heard)
    };
    let dial = async {
        let mut link = dialling.dial(dialled, Some((JOB, Role::Server)), LIMIT).await?;
        link.send_within(&ToScheduler::Goodbye, LIMIT).await?;
        link.receive_within::<ToScheduler>(LIMIT).await
    };
    tokio::join!(accept, dial)
}

fn fault<T: fmt::Debug>(result: Result<T, FrameError>) -> Fault {
    match result {
        Err(FrameError::Security(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// As a process that does not look at its own certificate would hold it.
fn careless(authority: &Authority, held: &Pair) -> Security {
    let settings = authority.settings(7, held);
    let good = authority.issue(&["gradwire://any/any"], -60, 3600);
    let honest = authority.settings(7, &good);
    let files = Files::new(&honest.security, Some((JOB, Role::Worker)));
    let mut loaded = files.load().unwrap();
    let chain = certificate::certificates(settings.security.certificate.unwrap().as_bytes()).unwrap();
    let key = rustls::pki_types::pem::PemObject::from_pem_slice(held.key.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate::certificates(authority.certificate().as_bytes()).unwrap().remove(0)).unwrap();
    loaded.ends = tls::ends(roots, chain, key).unwrap();
    let loaded = Mutex::new(Arc::new(loaded));
    Security(Some(Arc::new(Keys { files, loaded, complaints: Seldom::default() })))
}

#[tokio::test]
async fn two_of_one_authority_understand_each_other() {
    let authority = Authority::new("cluster");
    let (accepted, dialled) = meet(&authority.of(Role::Server), &authority.of(Role::Worker)).await;
    assert_eq!(accepted.unwrap(), Some(ToScheduler::Goodbye));
    assert_eq!(dialled.unwrap(), Some(ToScheduler::LinksReady));
}

#[tokio::test]
async fn who_is_of_another_authority_is_refused_on_both_sides() {
    let (ours, theirs) = (Authority::new("cluster"), Authority::new("cluster"));
    let (accepted, dialled) = meet(&ours.of(Role::Server), &theirs.of(Role::Worker)).await;
    // The dialling side sees the other's certificate first.
    assert!(matches!(fault(dialled), Fault::Theirs(why) if why.contains("another authority")));
    assert!(matches!(fault(accepted), Fault::Ours(why) if why.contains("another authority")));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_its_holder_is_told() {
    let authority = Authority::new("cluster");
    let expired = authority.issue(&["gradwire://7/worker"], -7200, -3600);
    let (accepted, dialled) = meet(&authority.of(Role::Server), &careless(&authority, &expired)).await;
    assert!(matches!(fault(accepted), Fault::Theirs(why) if why.contains("expired")));
    assert!(matches!(fault(dialled), Fault::Ours(why) if why.contains("expired")));
    let early = authority.issue(&["gradwire://7/worker"], 3600, 7200);
    let (accepted, _) = meet(&authority.of(Role::Server), &careless(&authority, &early)).await;
    assert!(matches!(fault(accepted), Fault::Theirs(why) if why.contains("not valid yet")));
}

#[tokio::test]
async fn a_certificate_of_another_job_or_role_is_refused_by_the_side_that_sees_it() {
    let authority = Authority::new("cluster");
    for held in ["gradwire://8/worker", "gradwire://7/server"] {
        let other = careless(&authority, &authority.issue(&[held], -60, 3600));
        let (accepted, _) = meet(&authority.of(Role::Server), &other).await;
        assert!(matches!(fault(accepted), Fault::Claim(claim) if claim.held == held));
    }
    let impostor = careless(&authority, &authority.issue(&["gradwire://7/worker"], -60, 3600));
    let (_, dialled) = meet(&impostor, &authority.of(Role::Worker)).await;
    assert!(matches!(fault(dialled), Fault::Claim(claim) if claim.role == Role::Server));
}

#[tokio::test]
async fn plain_and_secure_processes_tell_each_other_apart() {
    let authority = Authority::new("cluster");
    let (accepted, dialled) = meet(&authority.of(Role::Server), &Security::off()).await;
    assert_eq!(fault(accepted), Fault::Plain);
    assert_eq!(fault(dialled), Fault::Tls);
    let (accepted, dialled) = meet(&Security::off(), &authority.of(Role::Worker)).await;
    assert_eq!(fault(accepted), Fault::Tls);
    assert_eq!(fault(dialled), Fault::Closed);
}

#[tokio::test]
async fn strangers_that_say_nothing_or_anything_are_done_with_within_the_limit() {
    let server = Authority::new("cluster").of(Role::Server);
    let (accepted, silent) = sockets().await;
    let short = Duration::from_millis(30);
    let late = server.accept(accepted, short).await.unwrap_err();
    assert!(matches!(late, FrameError::Deadline { waited_ms: 30 }), "{late}");
    drop(silent);
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 4096], &[0x16, 0x03, 0x01, 0xFF, 0xFF]] {
        let (accepted, mut stranger) = sockets().await;
        let told = async {
            stranger.write_all(said).await.unwrap();
            stranger.shutdown().await.unwrap();
            let mut heard = Vec::new();
            // Reset or closed, with an alert or without.
            let _ = stranger.read_to_end(&mut heard).await;
            heard
        };
        let (accepted, heard) = tokio::join!(server.accept(accepted, LIMIT), told);
        assert!(matches!(accepted, Err(FrameError::Security(_))), "{accepted:?}");
        assert!(heard.len() < 64, "a stranger is told nothing but an alert: {heard:?}");
    }
}

#[test]
fn a_process_does_not_start_with_a_certificate_that_is_not_its_own() {
    let authority = Authority::new("cluster");
    let open =
        |settings: &Settings, role| Security::open(settings, Some(role)).map(|_| ()).unwrap_err().to_string();
    let worker = authority.issue(&["gradwire://7/worker"], -60, 3600);
    let settings = authority.settings(7, &worker);
    assert!(Security::open(&settings, Some(Role::Worker)).unwrap().is_on());
    let text = open(&settings, Role::Server);
    assert!(text.contains("server of job 7") && text.contains("gradwire certs issue"), "{text}");
    assert!(open(&authority.settings(8, &worker), Role::Worker).contains("job 8"));
    let expired = authority.issue(&["gradwire://7/worker"], -7200 - 86_400, -86_400 - 60);
    assert!(open(&authority.settings(7, &expired), Role::Worker).contains("expired 1 day ago"));
    let other = authority.issue(&["gradwire://7/worker"], -60, 3600);
    let mixed = Pair { certificate: worker.certificate.clone(), key: other.key };
    let text = open(&authority.settings(7, &mixed), Role::Worker);
    assert!(text.starts_with("security.certificate"), "{text}");
}

/// It would be let in by nobody who trusts what it trusts.
#[test]
fn a_process_does_not_start_with_a_certificate_that_its_own_authority_has_not_signed() {
    let (ours, theirs) = (Authority::new("cluster"), Authority::new("cluster"));
    let held = theirs.issue(&["gradwire://7/worker"], -60, 3600);
    let open = |settings: &Settings| Security::open(settings, Some(Role::Worker)).map(|_| ());
    let told = open(&ours.settings(7, &held)).unwrap_err().to_string();
    assert!(told.starts_with("security.certificate = the given text cannot be used"), "{told}");
    assert!(told.contains("no authority in security.ca") && told.contains("another authority"), "{told}");
    // While one authority takes the place of another, both are trusted.
    let mut both = ours.settings(7, &held);
    both.security.ca = Some(format!("{}{}", ours.certificate(), theirs.certificate()));
    open(&both).unwrap();
    // What only dials, or only accepts, may hold a certificate for that.
    for usage in [rcgen::ExtendedKeyUsagePurpose::ClientAuth, rcgen::ExtendedKeyUsagePurpose::ServerAuth] {
        open(&ours.settings(7, &ours.issue_for(usage.clone()))).unwrap();
        let told = open(&ours.settings(7, &theirs.issue_for(usage))).unwrap_err().to_string();
        assert!(told.contains("cannot be used"), "{told}");
    }
}

#[test]
fn files_that_are_missing_or_no_pem_are_named_with_their_setting() {
    let (authority, directory) = (Authority::new("cluster"), tempfile::tempdir().unwrap());
    let held = authority.issue(&["gradwire://7/worker"], -60, 3600);
    let good = authority.settings(7, &held);
    let path = directory.path().join("x.pem");
    let open = |settings: &Settings| {
        Security::open(settings, Some(Role::Worker)).map(|_| ()).unwrap_err().to_string()
    };
    let name = path.display().to_string();
    let mut settings = good.clone();
    settings.security.ca = Some(name.clone());
    assert!(open(&settings).contains("cannot read security.ca"));
    std::fs::write(&path, "nothing").unwrap();
    assert!(open(&settings).contains("security.ca") && open(&settings).contains("CERTIFICATE"));
    let mut settings = good;
    settings.security.key = Some(proto_common::config::Hidden(name));
    assert!(open(&settings).contains("not a private key"));
}

/// What begins otherwise than PEM does was taken for a file's name, which the error then said whole.
#[test]
fn a_key_that_is_given_as_text_is_never_shown() {
    let authority = Authority::new("cluster");
    let held = authority.issue(&["gradwire://7/worker"], -60, 3600);
    let secret = held.key.lines().nth(1).unwrap().to_owned();
    let opened = |key: String| {
        let mut settings = authority.settings(7, &held);
        settings.security.key = Some(proto_common::config::Hidden(key));
        Security::open(&settings, Some(Role::Worker)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(opened(format!("Bag Attributes\n    friendlyName: x\n{}", held.key)), Ok(()));
    let body: String = held.key.lines().filter(|line| !line.contains("-----")).collect::<Vec<_>>().join("\n");
    for key in [
        format!("\"{}\"", held.key),
        format!("\u{feff}{}", held.key),
        held.key.replace('\n', "\\n"),
        held.key.replace("-----BEGIN", "BEGIN"),
        body,
    ] {
        if let Err(told) = opened(key.clone()) {
            assert!(told.contains("security.key = the given text"), "{told}");
            assert!(!told.contains(&secret), "{key:?} is shown");
        }
    }
}

#[tokio::test]
async fn renewed_files_are_used_from_the_next_connection_on_and_bad_ones_are_not() {
    let (authority, directory) = (Authority::new("cluster"), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    let put = |held: &Pair| {
        // As renewals are done: a whole file takes the place of another one.
        for (name, text) in [("key", &held.key), ("certificate", &held.certificate)] {
            std::fs::write(path("next"), text).unwrap();
            std::fs::rename(path("next"), path(name)).unwrap();
        }
    };
    let first = authority.issue(&["gradwire://7/server"], -60, 3600);
    put(&first);
    let mut settings = authority.settings(7, &first);
    settings.security.certificate = Some(path("certificate").display().to_string());
    settings.security.key = Some(proto_common::config::Hidden(path("key").display().to_string()));
    let server = Security::open(&settings, Some(Role::Server)).unwrap();
    let before = server.expires_s().unwrap();
    put(&authority.issue(&["gradwire://7/server"], -60, 7200));
    assert!(server.expires_s().unwrap() > before + 3000);
    let renewed = server.expires_s();
    put(&authority.issue(&["gradwire://7/server"], -7200, -60));
    assert_eq!(server.expires_s(), renewed, "an expired one does not take the place of a good one");
    put(&Authority::new("cluster").issue(&["gradwire://7/server"], -60, 9000));
    assert_eq!(server.expires_s(), renewed, "nor does one that another authority has signed");
    let (accepted, _) = meet(&server, &authority.of(Role::Worker)).await;
    assert_eq!(accepted.unwrap(), Some(ToScheduler::Goodbye));
}
