//! Checkpoints in a store that speaks S3: moto's server, which `checkpoint/test-object-store.sh` installs and names.

use super::*;
use crate::{Checkpoint, Manifest, PartPlan, PartWriter, RowsPiece, Shape, catalog, open};
use object_store::{PutPayload, PutResult, UploadPart};
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, TableSpec};
use std::io::{BufRead as _, BufReader, Read as _};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// The server, and its address, as it says it itself.
    fn start() -> (Self, String) {
        let program = std::env::var("GRADWIRE_MOTO").unwrap();
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", "0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let server = Self(child);
        let mut lines = lines.map_while(Result::ok);
        let address =
            lines.find_map(|line| Some(line.split_once("Running on ")?.1.trim().to_owned())).unwrap();
        // It goes on writing; somebody is to read.
        std::thread::spawn(move || lines.for_each(drop));
        (server, address)
    }
}

fn bucket(endpoint: &str, place: &str) -> Bucket {
    Bucket::build(
        place,
        AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_access_key_id("test")
            .with_secret_access_key("test"),
    )
    .unwrap()
}

/// Makes the bucket: an empty PUT, as S3 has it.
fn make(endpoint: &str, bucket: &str) {
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "PUT /{bucket} HTTP/1.1\r\nHost: {address}\r\nAuthorization: AWS4-HMAC-SHA256 \
         Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A checkpoint with one part of several pieces.
fn write(store: &Arc<dyn Store>, round: u64) -> Manifest {
    let name = catalog::round_name(round);
    let table = TableSpec::new(5, 1024, Optimizer::sum(), Initial::Constant(0.0));
    let plan = PartPlan { tables: vec![(table, 1)], ..PartPlan::default() };
    let mut writer = PartWriter::begin(store.clone(), &name, "part-0.safetensors", &plan).unwrap();
    let ids: Vec<u64> = (0..5000).collect();
    let numbers = (0..5000 * 1024).map(|at| (at as u64 ^ round) as f32).collect();
    writer.rows(&RowsPiece { key: 5, pushes: ids.clone(), ids, numbers }).unwrap();
    let mut manifest = Manifest::new(&name, 1, round, round, Shape::default());
    manifest.parts.push(writer.finish().unwrap());
    catalog::commit(&**store, &manifest).unwrap();
    manifest
}

#[test]
#[ignore = "needs moto's server: checkpoint/test-object-store.sh"]
fn a_checkpoint_is_written_read_listed_and_removed() {
    let (_server, endpoint) = Server::start();
    make(&endpoint, "models");
    for place in ["s3://models/a/b", "s3://models"] {
        let store: Arc<dyn Store> = Arc::new(bucket(&endpoint, place));
        assert!(store.names().unwrap().is_empty());
        assert_eq!(catalog::newest(&*store).unwrap(), None);
        let written: Vec<Manifest> = (1..4).map(|round| write(&store, round)).collect();
        assert!(written[0].bytes() > 2 * PIECE_BYTES, "several pieces");
        assert_eq!(catalog::newest(&*store).unwrap().as_ref(), Some(&written[2]));
        catalog::verify(&store, &written[1].name, |_, _| ()).unwrap();
        let mut rows = 0;
        let checkpoint = Checkpoint::open(&store, &written[1].name).unwrap();
        let right = |piece: &RowsPiece| {
            rows += piece.ids.len();
            assert!(piece.numbers.iter().enumerate().all(|(at, number)| *number == (at as u64 ^ 2) as f32));
        };
        checkpoint.rows(5, |_| true, right).unwrap();
        assert_eq!(rows, 5000);
        assert_eq!(
            crate::retain(&*store, &written[2], 2, |_| false, |_| false).unwrap().gone,
            [written[0].name.clone()]
        );
        assert_eq!(store.names().unwrap(), [written[1].name.clone(), written[2].name.clone()]);
        assert!(matches!(Checkpoint::open(&store, &written[0].name), Err(CheckpointError::Missing { .. })));
        // Shorter than the manifest says.
        store.put_bytes(&written[1].name, "part-0.safetensors", b"short").unwrap();
        let error = catalog::verify(&store, &written[1].name, |_, _| ()).unwrap_err();
        assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}");
        [1, 2].iter().for_each(|at| assert!(crate::remove(&*store, &written[*at].name).unwrap()));
        assert!(store.names().unwrap().is_empty());
    }
}

#[test]
#[ignore = "needs moto's server: checkpoint/test-object-store.sh"]
fn of_those_that_claim_a_term_in_a_bucket_one_has_it() {
    let (_server, endpoint) = Server::start();
    make(&endpoint, "models");
    let store: Arc<dyn Store> = Arc::new(bucket(&endpoint, "s3://models/job-1"));
    assert!(store.put_new("a", "b", b"first").unwrap());
    assert!(!store.put_new("a", "b", b"second").unwrap());
    let mut read = [0; 5];
    store.read("a", "b", 0, &mut read).unwrap();
    assert_eq!(&read, b"first");
    let owner = |id| crate::Owner { id, ..crate::Owner::default() };
    let mut before: Option<crate::Ownership> = None;
    for term in 1..=3 {
        let found = crate::newest_term(&*store).unwrap();
        let claim = |id| crate::claim(store.clone(), found.as_ref(), owner(id)).unwrap();
        let claimed: Vec<_> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..4).map(|id| scope.spawn(move || claim(10 * term + id))).collect();
            claims.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(claimed.len(), 1);
        if let Some(before) = before {
            assert!(matches!(before.check(), Err(CheckpointError::Deposed { .. })));
        }
        before = claimed.into_iter().next();
        before.as_ref().unwrap().beat().unwrap();
    }
    assert_eq!(store.files("owner").unwrap().len(), 1);
}

#[test]
#[ignore = "needs moto's server: checkpoint/test-object-store.sh"]
fn a_bucket_that_is_not_there_is_told_also_from_within_a_runtime() {
    let (_server, endpoint) = Server::start();
    let store = bucket(&endpoint, "s3://nothing");
    let runtime = Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async move { store.put_bytes("round-1", "a", b"a") }).unwrap_err();
    assert!(error.to_string().contains("no such bucket"), "{error}");
}

#[test]
fn places_that_are_no_buckets_are_refused() {
    for place in ["s3://", "s3:///a", "gs://bucket/a", "http://x"] {
        let error = open(place).unwrap_err();
        assert!(matches!(error, CheckpointError::BadPlace { .. }), "{place}: {error}");
    }
}

/// The directory for temporary files is everybody's: a link there leads nowhere, others cannot read, and a process that is
/// killed leaves nothing.
#[test]
fn what_is_not_sent_yet_has_no_name_and_is_nobody_elses() {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    let place = tempfile::tempdir().unwrap();
    let staged = [stage_in(place.path()).unwrap(), stage_in(place.path()).unwrap()];
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "a killed process would leave it");
    assert_ne!(staged[0].path, staged[1].path);
    assert_eq!(staged[0].file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    staged[0].file.write_all_at(b"whole", 0).unwrap();
    let mut read = [0; 5];
    staged[0].file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"whole");
    let (link, target) = (place.path().join("link"), place.path().join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert_eq!(new_file(&link, &mut OpenOptions::new()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(!target.exists());
}

/// An upload whose pieces do not arrive; it says whether it was given up.
#[derive(Debug)]
struct Lost {
    aborted: Arc<AtomicBool>,
    clears_up: bool,
}

fn lost(word: &'static str) -> object_store::Error {
    object_store::Error::Generic { store: "test", source: word.into() }
}

impl MultipartUpload for Lost {
    fn put_part(&mut self, _: PutPayload) -> UploadPart {
        Box::pin(async { Err(lost("the piece is lost")) })
    }

    fn complete<'a, 'b>(
        &'a mut self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<PutResult>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async { Err(lost("never whole")) })
    }

    fn abort<'a, 'b>(&'a mut self) -> Pin<Box<dyn Future<Output = object_store::Result<()>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.aborted.store(true, Ordering::Relaxed);
        let clears_up = self.clears_up;
        Box::pin(async move { if clears_up { Ok(()) } else { Err(lost("the store is gone")) } })
    }
}

#[test]
fn a_part_of_any_size_has_as_many_pieces_as_the_store_takes() {
    let short = PIECE_BYTES * PIECES_MAX;
    let longest = PIECE_BYTES_MAX * PIECES_MAX;
    for (part, piece) in [
        (0, PIECE_BYTES),
        (short, PIECE_BYTES),
        (short + 1, 2 * PIECE_BYTES),
        (5 << 40, 66 * PIECE_BYTES),
        (longest, PIECE_BYTES_MAX),
    ] {
        assert_eq!(piece_bytes(part), Some(piece), "{part}");
        assert!(part.div_ceil(piece) <= PIECES_MAX, "{part}");
    }
    assert_eq!(piece_bytes(longest + 1), None);
}

#[test]
fn pieces_of_a_part_that_is_not_sent_whole_do_not_stay() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let long = 2 * AHEAD_BYTES;
    for (bytes, clears_up) in [(100, true), (long, true), (long, false)] {
        let aborted = Arc::new(AtomicBool::new(false));
        let upload = Box::new(Lost { aborted: aborted.clone(), clears_up });
        let sent = runtime.block_on(send_pieces(upload, &mut io::repeat(1).take(bytes), PIECE_BYTES));
        let error = sent.unwrap_err().to_string();
        assert!(aborted.load(Ordering::Relaxed), "{bytes}");
        assert!(error.contains("the piece is lost"), "{error}");
        assert_eq!(error.contains("take space in the store"), !clears_up, "{error}");
    }
}
